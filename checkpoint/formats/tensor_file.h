#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/formats/safetensors.h"
#include "checkpoint/formats/torch_bin/torch_bin.h"

namespace oslo {

/// A file of tensors of either format, told by its extension, opened once: names, shapes and types
/// are known, contents are read tensor by tensor on demand.
class TensorFile {
 public:
  struct Entry {
    std::vector<int64_t> shape;
    c10::ScalarType dtype;
  };
  using Visit = std::function<void(const at::Tensor& contents)>;

  /// Throws `Error` naming the file: see SafetensorsFile and TorchBinFile.
  explicit TensorFile(const InputFile& file);

  std::vector<std::string> keys() const;
  /// Throws `Error` naming file and key where it is absent.
  Entry entry(const std::string& key) const;

  /// Calls `visit` with the contents of a tensor, on the CPU, not to be written and not to be kept:
  /// of a safetensors file they are mapped, and only the pages that `visit` touches are read; they
  /// may have one dimension more, of the bytes of an element (`SafetensorsFile::visit`). Of a .bin
  /// the tensor's storage is read as a whole.
  void visit(const std::string& key, const Visit& visit) const;

  /// Whether `visit` reads no more than is touched; else it is what `bytes_read` counts.
  bool reads_parts() const { return safetensors_.has_value(); }
  uint64_t bytes_read() const { return bin_ ? bin_->bytes_read() : 0; }

  /// Of a safetensors file; empty for a .bin.
  const SafetensorsMetadata& metadata() const;

 private:
  std::optional<SafetensorsFile> safetensors_;
  std::optional<TorchBinFile> bin_;
};

}  // namespace oslo
