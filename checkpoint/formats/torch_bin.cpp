#include "checkpoint/formats/torch_bin.h"

#include <ATen/ATen.h>
#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <new>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/formats/stored_zip.h"
#include "checkpoint/formats/tensor_bytes.h"
#include "checkpoint/formats/torch_dtypes.h"
#include "checkpoint/formats/unpickler.h"
#include "checkpoint/storage/file_io.h"
#include "checkpoint/storage/outside_text.h"
#include "mpu/error.h"
#include "mpu/text.h"

namespace oslo {
namespace {

/// The part of a storage that the tensors of one dtype reach, in elements.
struct Span {
  at::Tensor any;  // one of the tensors, which keeps the storage alive
  std::string key;
  int64_t begin;
  int64_t end;
};

using StorageKey = std::pair<const void*, c10::ScalarType>;

StorageKey storage_key(const at::Tensor& tensor) {
  return {tensor.storage().unsafeGetStorageImpl(), tensor.scalar_type()};
}

/// The pickle that `torch.save` writes for a dict of tensors, value by value. It is our own rather
/// than torch::jit::Pickler because that one has no word for the 8-bit floats and writes whole
/// storages. Nothing is memoized: Python finds shared storages by their key.
class DictPickle {
 public:
  DictPickle() { bytes("\x80\x02}("); }

  void add(const std::string& name, const at::Tensor& tensor, const Span& span) {
    const TorchDtype& dtype = *find_torch_dtype(tensor.scalar_type());
    const bool typed = !dtype.storage.empty();
    text(name);
    global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    bytes("((");
    text("storage");
    global(typed ? "torch" : "torch.storage", typed ? dtype.storage : "UntypedStorage");
    text(span.key);
    text("cpu");
    number((span.end - span.begin) * (typed ? 1 : static_cast<int64_t>(tensor.element_size())));
    bytes("tQ");
    number(tensor.numel() == 0 ? 0 : tensor.storage_offset() - span.begin);
    tuple(tensor.sizes());
    tuple(tensor.strides());
    bytes("\x89");  // requires_grad is False
    global("collections", "OrderedDict");
    bytes(")R");  // no hooks
    if (!typed) {
      global("torch", dtype.name);
    }
    bytes("tR");
  }

  const std::string& finish() {
    bytes("u.");
    return out_;
  }

 private:
  void bytes(std::string_view operations) { out_ += operations; }
  void little_endian(uint64_t value, size_t count) {
    out_.append(reinterpret_cast<const char*>(&value), count);
  }
  void text(std::string_view value) {
    bytes("X");
    little_endian(value.size(), 4);
    bytes(value);
  }
  void global(std::string_view module, std::string_view name) {
    out_.append("c").append(module).append("\n").append(name).append("\n");
  }
  void number(int64_t value) {
    bytes("\x8a\x08");
    little_endian(static_cast<uint64_t>(value), 8);
  }
  void tuple(at::IntArrayRef values) {
    bytes("(");
    for (const int64_t value : values) {
      number(value);
    }
    bytes("t");
  }

  std::string out_;
};

/// Grows `spans` by what `tensor` reaches.
void cover(std::map<StorageKey, Span>& spans, const at::Tensor& tensor) {
  const auto [found, fresh] =
      spans.try_emplace(storage_key(tensor), Span{tensor, std::to_string(spans.size()), 0, 0});
  if (tensor.numel() == 0) {
    return;
  }
  Span& span = found->second;
  const int64_t begin = tensor.storage_offset();
  int64_t end = begin + 1;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    end += (tensor.size(i) - 1) * tensor.stride(i);
  }
  const bool first = span.begin == span.end;
  span.begin = first ? begin : std::min(span.begin, begin);
  span.end = first ? end : std::max(span.end, end);
}

// Twice what 200,000 tensors take.
constexpr uint64_t kLargestPickle = 100'000'000;
/// Of the records that hold a word or a number.
constexpr uint64_t kLongestWord = 32;

/// Throws unless the archive is of a version that this LibTorch reads, too.
void check_version(const StoredZip& archive, const std::string& file) {
  const char* record = archive.contains(".data/version") ? ".data/version" : "version";
  OSLO_CHECK(archive.contains(record), file, " has no record version: torch.save did not write it");
  const std::string text = archive.read_text(record, kLongestWord);
  uint64_t version = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  const std::string_view rest(stop, text.data() + text.size() - stop);
  OSLO_CHECK(error == std::errc() && (rest.empty() || rest == "\n"), file,
             " is damaged: its version '", printable(text), "' is no number");
  OSLO_CHECK(version >= caffe2::serialize::kMinSupportedFileFormatVersion &&
                 version <= caffe2::serialize::kMaxSupportedFileFormatVersion,
             file, " has format version ", version, ", this LibTorch reads ",
             caffe2::serialize::kMinSupportedFileFormatVersion, " to ",
             caffe2::serialize::kMaxSupportedFileFormatVersion);
}

}  // namespace

void write_torch_bin(const std::filesystem::path& path, const StateDict& state) {
  StateDict plain;
  std::map<StorageKey, Span> spans;
  for (const auto& [name, tensor] : state) {
    const std::string where = c10::str("cannot write '", name, "' to ", path.string(), ": ");
    check_has_bytes(tensor, where);
    OSLO_CHECK(find_torch_dtype(tensor.scalar_type()) != nullptr, where,
               "torch.load has no plain dtype ", c10::toString(tensor.scalar_type()));
    plain.insert(name, tensor.detach().resolve_conj().resolve_neg());
    cover(spans, plain.at(name));
  }
  DictPickle pickle;
  for (const auto& [name, tensor] : plain) {
    pickle.add(name, tensor, spans.at(storage_key(tensor)));
  }
  const std::string& program = pickle.finish();

  OutputFile file(path);
  // The archive writer finishes the file in its destructor, where an exception would end the
  // program: a failure is kept until it is gone.
  std::exception_ptr failure;
  {
    caffe2::serialize::PyTorchStreamWriter archive([&](const void* data, size_t bytes) {
      try {
        if (!failure) {
          file.write(data, bytes);
        }
      } catch (...) {
        failure = std::current_exception();
      }
      return bytes;
    });
    archive.writeRecord("data.pkl", program.data(), program.size());
    archive.writeRecord("byteorder", "little", std::strlen("little"));
    std::vector<const Span*> order(spans.size());
    for (const auto& [key, span] : spans) {
      order[std::stoul(span.key)] = &span;
    }
    for (const Span* span : order) {
      if (failure) {
        break;
      }
      const auto width = static_cast<int64_t>(span->any.element_size());
      const at::Tensor data = to_plain_bytes(at::empty({0}, span->any.options().dtype(at::kByte))
                                                 .set_(span->any.storage(), span->begin * width,
                                                       {(span->end - span->begin) * width}, {1}));
      archive.writeRecord("data/" + span->key, data.const_data_ptr(), data.nbytes());
    }
    archive.writeEndOfFile();
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
  file.close();
}

StateDict read_torch_bin(const std::filesystem::path& path) try {
  const std::string file = printable_path(path);
  {
    const InputFile opened(path);
    std::string magic(std::min<uint64_t>(opened.size(), 4), '\0');
    opened.read(magic.data(), magic.size(), 0);
    OSLO_CHECK(magic.substr(0, 2) != "\x80\x02", file,
               " is in torch.save's format from before 2020; save it again with a current PyTorch");
    OSLO_CHECK(magic == "PK\x03\x04", file, " is not a file of torch.save (no zip archive)");
  }
  const StoredZip archive(path);
  OSLO_CHECK(archive.contains("data.pkl"), file,
             " has no record data.pkl: torch.save did not write it");
  OSLO_CHECK(!archive.contains("constants.pkl"), file,
             " is a TorchScript archive, not a state_dict");
  OSLO_CHECK(
      !archive.contains("byteorder") || archive.read_text("byteorder", kLongestWord) == "little",
      file, " was saved on a big-endian machine; save it again on a little-endian one");
  check_version(archive, file);

  std::map<std::string, c10::Storage, std::less<>> loaded;
  uint64_t total = 0;
  const auto load_storage = [&](std::string_view key, uint64_t bytes) {
    const auto known = loaded.find(key);
    if (known != loaded.end()) {
      OSLO_CHECK(known->second.nbytes() == bytes, file, ": storage '", printable(key), "' has ",
                 bytes, " bytes in one place and ", known->second.nbytes(), " in another");
      return known->second;
    }
    const std::string record = c10::str("data/", key);
    OSLO_CHECK(archive.contains(record), file, " lacks the storage '", printable(key), "' of ",
               bytes, " bytes: it is damaged");
    const uint64_t held = archive.size(record);
    OSLO_CHECK(held == bytes, file, ": storage '", printable(key), "' should have ", bytes,
               " bytes and has ", held);
    // Records may lie over each other, but what torch.save wrote cannot outgrow the file.
    total += bytes;
    OSLO_CHECK(total <= archive.file_size(), file, ": its storages claim ", total,
               " bytes in a file of ", archive.file_size(), ": it is damaged");
    const at::Tensor data = at::empty({static_cast<int64_t>(bytes)}, at::kByte);
    archive.read(record, data.mutable_data_ptr());
    return loaded.emplace(key, data.storage()).first->second;
  };
  const std::string program = archive.read_text("data.pkl", kLargestPickle);
  return unpickle_state_dict(program, file, load_storage);
} catch (const c10::Error& error) {
  fail(printable_path(path), " cannot be read: ", first_line(error.what_without_backtrace()));
} catch (const std::bad_alloc&) {
  fail(printable_path(path), " takes more memory than there is");
}

}  // namespace oslo
