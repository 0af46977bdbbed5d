#include "checkpoint/formats/torch_bin/torch_bin.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>
#include <c10/util/strides.h>
#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/formats/tensors/tensor_bytes.h"
#include "checkpoint/formats/tensors/torch_dtypes.h"
#include "checkpoint/formats/torch_bin/unpickler.h"
#include "checkpoint/storage/file_io.h"
#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

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
    const int64_t offset = tensor.numel() == 0 ? 0 : tensor.storage_offset() - span.begin;
    add(name, tensor.scalar_type(), {span.key, span.end - span.begin, offset}, tensor.sizes(),
        tensor.strides());
  }

  /// Where a tensor lies: in elements.
  struct Place {
    const std::string& key;
    int64_t storage_size;
    int64_t offset;
  };

  void add(const std::string& name, c10::ScalarType scalar_type, const Place& place,
           at::IntArrayRef sizes, at::IntArrayRef strides) {
    const TorchDtype& dtype = *find_torch_dtype(scalar_type);
    const bool typed = !dtype.storage.empty();
    text(name);
    global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
    bytes("((");
    text("storage");
    global(typed ? "torch" : "torch.storage", typed ? dtype.storage : "UntypedStorage");
    text(place.key);
    text("cpu");
    number(place.storage_size * (typed ? 1 : static_cast<int64_t>(c10::elementSize(scalar_type))));
    bytes("tQ");
    number(place.offset);
    tuple(sizes);
    tuple(strides);
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

/// Throws unless readers take the program: they bound what it makes.
void check_readable(const std::string& program, const std::filesystem::path& path) {
  const auto storage_of = [](std::string_view, uint64_t bytes) {
    return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<int64_t>(bytes),
                        at::DataPtr(nullptr, at::Device(at::kCPU)), nullptr, false);
  };
  try {
    OSLO_CHECK_AS(file, program.size() <= kLargestPickle, "its program has ", program.size(),
                  " bytes, and at most ", kLargestPickle, " are read");
    unpickle_state_dict(program, printable_path(path), storage_of);
  } catch (const Error& error) {
    fail_as(ErrorKind::file, "cannot write ", printable_path(path),
            ", which no load could read: ", error.what(),
            "; save fewer tensors in one file, or as 'safetensors'");
  }
}

/// Writes an archive of torch.save: the program, and the storages that `give` makes one by one.
FileContents write_archive(const std::filesystem::path& path, const std::string& program,
                           size_t storages, const std::function<at::Tensor(size_t number)>& give) {
  check_readable(program, path);
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
    for (size_t i = 0; i < storages && !failure; ++i) {
      try {
        const at::Tensor data = give(i);
        archive.writeRecord("data/" + std::to_string(i), data.const_data_ptr(), data.nbytes());
      } catch (...) {
        failure = std::current_exception();
      }
    }
    archive.writeEndOfFile();
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
  file.close();
  return file.contents();
}

}  // namespace

FileContents write_torch_bin(const std::filesystem::path& path, const StateDict& state) {
  StateDict plain;
  std::map<StorageKey, Span> spans;
  for (const auto& [name, tensor] : state) {
    const std::string where = c10::str("cannot write '", name, "' to ", path.string(), ": ");
    check_has_bytes(tensor, where);
    OSLO_CHECK_AS(file, find_torch_dtype(tensor.scalar_type()) != nullptr, where,
                  "torch.load has no plain dtype ", c10::toString(tensor.scalar_type()));
    // As it lies: tensors that share memory are to share it in the file.
    plain.insert(name, tensor._is_zerotensor() ? tensor.detach().clone()
                                               : tensor.detach().resolve_conj().resolve_neg());
    cover(spans, plain.at(name));
  }
  DictPickle pickle;
  for (const auto& [name, tensor] : plain) {
    pickle.add(name, tensor, spans.at(storage_key(tensor)));
  }
  const std::string& program = pickle.finish();

  std::vector<const Span*> order(spans.size());
  for (const auto& [key, span] : spans) order[std::stoul(span.key)] = &span;
  return write_archive(path, program, order.size(), [&](size_t number) {
    const Span& span = *order[number];
    const auto width = static_cast<int64_t>(span.any.element_size());
    return to_plain_bytes(
        at::empty({0}, span.any.options().dtype(at::kByte))
            .set_(span.any.storage(), span.begin * width, {(span.end - span.begin) * width}, {1}));
  });
}

FileContents write_torch_bin(const std::filesystem::path& path, const TensorStream& tensors,
                             const std::map<std::string, std::string>& ties) {
  DictPickle pickle;
  std::map<std::string, size_t> numbers;
  const auto add = [&](const std::string& name, size_t number) {
    const TensorOutline& outline = tensors.outlines[number];
    OSLO_CHECK_AS(file, find_torch_dtype(outline.dtype) != nullptr, "cannot write '", name, "' to ",
                  path.string(), ": torch.load has no plain dtype ", c10::toString(outline.dtype));
    const int64_t count = c10::multiply_integers(outline.shape);
    pickle.add(name, outline.dtype, {std::to_string(number), count, 0}, outline.shape,
               c10::contiguous_strides(outline.shape));
  };
  for (size_t i = 0; i < tensors.outlines.size(); ++i) {
    numbers.emplace(tensors.outlines[i].name, i);
    add(tensors.outlines[i].name, i);
  }
  for (const auto& [name, tensor] : ties) add(name, numbers.at(tensor));
  return write_archive(path, pickle.finish(), tensors.outlines.size(), [&](size_t number) {
    return to_plain_bytes(tensors.take(tensors.outlines[number]));
  });
}

}  // namespace oslo
