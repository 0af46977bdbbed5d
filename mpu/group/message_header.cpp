#include "mpu/group/message_header.h"

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/accumulate.h>

#include <limits>

#include "mpu/base/error.h"

namespace oslo {
namespace {

/// How every header begins: a number that tensors do not hold by chance.
constexpr int64_t kSignature = 0x6f736c6f'6d736731;
constexpr int64_t kMostWords = int64_t{1} << 24;
constexpr int64_t kMostDimensions = 64;

/// Reads numbers one after the other, and never past the end.
class HeaderReader {
 public:
  explicit HeaderReader(const std::vector<int64_t>& words) : words_(words) {}
  int64_t next(int64_t least, int64_t most) {
    OSLO_CHECK(at_ < words_.size() && words_[at_] >= least && words_[at_] <= most,
               "a message's header is damaged: word ", at_, " of ", words_.size());
    return words_[at_++];
  }

 private:
  const std::vector<int64_t>& words_;
  size_t at_ = 0;
};

}  // namespace

TensorHeader::TensorHeader(const at::Tensor& tensor) : defined(tensor.defined()) {
  if (!defined) return;
  OSLO_CHECK(tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_nested(),
             "send takes dense tensors, and this one is ", tensor.toString(),
             "; send what it is made of");
  dtype = tensor.scalar_type();
  device = tensor.device().type();
  // LibTorch's place for devices of others: whether anything carries them, the group knows.
  const bool others = device == c10::kPrivateUse1;
  OSLO_CHECK(device == c10::kCPU || device == c10::kCUDA || device == c10::kMeta || others,
             "send takes tensors on cpu, cuda and meta, and this one is on ", tensor.device());
  sizes = tensor.sizes().vec();
}

int64_t TensorHeader::numel() const {
  return defined ? c10::multiply_integers(sizes) : 0;
}

int64_t TensorHeader::bytes() const {
  return numel() * static_cast<int64_t>(c10::elementSize(dtype));
}

std::string TensorHeader::to_text() const {
  return defined ? c10::str(dtype, c10::IntArrayRef(sizes)) : "no tensor";
}

std::vector<int64_t> MessageHeader::words() const {
  std::vector<int64_t> words{kSignature, 0, device_tensors_before, framed_bytes,
                             static_cast<int64_t>(tensors.size())};
  for (const TensorHeader& tensor : tensors) {
    words.push_back(tensor.defined ? static_cast<int64_t>(tensor.sizes.size()) : -1);
    if (!tensor.defined) continue;
    words.push_back(static_cast<int64_t>(tensor.dtype));
    words.push_back(static_cast<int64_t>(tensor.device));
    words.insert(words.end(), tensor.sizes.begin(), tensor.sizes.end());
  }
  words.resize((words.size() + kWords - 1) / kWords * kWords);
  words[1] = static_cast<int64_t>(words.size());
  return words;
}

int64_t MessageHeader::count_words(const std::vector<int64_t>& block) {
  OSLO_CHECK(block.size() >= 2 && block[0] == kSignature && block[1] >= kWords &&
                 block[1] <= kMostWords && block[1] % kWords == 0,
             "what came is no message of Group::send");
  return block[1];
}

MessageHeader MessageHeader::from_words(const std::vector<int64_t>& words) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  MessageHeader header;
  HeaderReader reader(words);
  reader.next(kSignature, kSignature);
  reader.next(kWords, kMostWords);
  header.device_tensors_before = reader.next(0, kMost);
  header.framed_bytes = reader.next(0, kMost);
  header.tensors.resize(reader.next(0, static_cast<int64_t>(words.size())));
  for (TensorHeader& tensor : header.tensors) {
    const int64_t dimensions = reader.next(-1, kMostDimensions);
    tensor.defined = dimensions >= 0;
    if (!tensor.defined) continue;
    tensor.dtype = static_cast<at::ScalarType>(
        reader.next(0, static_cast<int64_t>(at::ScalarType::NumOptions) - 1));
    tensor.device = static_cast<c10::DeviceType>(reader.next(0, 127));
    for (int64_t d = 0; d < dimensions; ++d) tensor.sizes.push_back(reader.next(0, kMost));
  }
  return header;
}

}  // namespace oslo
