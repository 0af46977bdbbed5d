#include "parallelizers/data/replicas.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>

#include "mpu/error.h"
#include "parallelizers/placement/carrier/key.h"

namespace oslo {
namespace {

constexpr int64_t kMessageBytes = 32 * 1024 * 1024;

/// FNV-1a: the same on all ranks, whatever their standard library.
int64_t hash_of(const std::string& text) {
  uint64_t hash = 14695981039346656037ULL;
  for (const unsigned char c : text) hash = (hash ^ c) * 1099511628211ULL;
  return static_cast<int64_t>(hash);
}

std::vector<std::string> gather_texts(Group& group, const std::string& text) {
  const auto size = static_cast<int64_t>(text.size());
  const std::vector<int64_t> sizes = group.exchange(size);
  const at::Tensor bytes = at::empty({size}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  const at::Tensor all = group.all_gather(bytes, 0, sizes);
  const char* next = static_cast<const char*>(all.const_data_ptr());
  std::vector<std::string> texts;
  for (const int64_t length : sizes) {
    texts.emplace_back(next, length);
    next += length;
  }
  return texts;
}

/// The first line that differs, without its end; "nothing" past the last one.
std::pair<std::string, std::string> first_difference(const std::string& a, const std::string& b) {
  size_t start = 0;
  const auto line = [&start](const std::string& text) {
    return start < text.size() ? text.substr(start, text.find('\n', start) - start) : "nothing";
  };
  while (start < a.size() && line(a) == line(b)) start += line(a).size() + 1;
  return {line(a), line(b)};
}

at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.contiguous().view({-1}).view(at::kByte);
}

void broadcast_together(Group& group, const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> bytes;
  for (const at::Tensor& tensor : tensors) bytes.push_back(bytes_of(tensor));
  at::Tensor message = at::cat(bytes);
  group.broadcast(message);
  if (group.rank() == 0) return;
  int64_t start = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t length = bytes[i].numel();
    bytes[i].copy_(message.narrow(0, start, length));
    if (!bytes[i].is_alias_of(tensors[i])) {
      tensors[i].copy_(bytes[i].view(tensors[i].scalar_type()).view(tensors[i].sizes()));
    }
    start += length;
  }
}

}  // namespace

void check_replicas_agree(Group& group, const std::string& what,
                          const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  const std::vector<int64_t> hashes = group.exchange(hash_of(text));
  if (std::ranges::count(hashes, hashes[0]) == std::ssize(hashes)) return;
  const std::vector<std::string> texts = gather_texts(group, text);
  for (int rank = 1; rank < group.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    const auto [first, other] = first_difference(texts[0], texts[rank]);
    fail(what, " of ", group.name(), " rank ", rank, " is not that of ", group.name(),
         " rank 0: there ", other, ", on rank 0 ", first, "; all ranks of the group must build ",
         what, " alike");
  }
}

void broadcast_from_first(Group& group, const std::vector<at::Tensor>& tensors) {
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  struct Message {
    std::vector<at::Tensor> tensors;
    int64_t bytes = 0;
  };
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, Message> open;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    const c10::Device device = tensor.device();
    Message& message = open[{device.type(), device.index()}];
    message.tensors.push_back(tensor);
    message.bytes += static_cast<int64_t>(tensor.nbytes());
    if (message.bytes < kMessageBytes) continue;
    broadcast_together(group, message.tensors);
    message = {};
  }
  for (const auto& [_, message] : open) {
    if (!message.tensors.empty()) broadcast_together(group, message.tensors);
  }
}

}  // namespace oslo
