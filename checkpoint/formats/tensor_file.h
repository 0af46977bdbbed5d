#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
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
  /// Throws `Error` naming the file: see SafetensorsFile and TorchBinFile.
  explicit TensorFile(const InputFile& file);

  std::vector<std::string> keys() const;
  /// Throws `Error` naming file and key where it is absent.
  Entry entry(const std::string& key) const;

  /// The contents of a tensor, on the CPU, not to be written: of a .bin its storage is read whole.
  at::Tensor read(const std::string& key) const;
  /// Some of its elements (`SafetensorsFile::read_elements`), where `reads_parts` says so.
  at::Tensor read_elements(const std::string& key, int64_t first, int64_t count) const;

  /// Whether a part of a tensor can be read; else `bytes_read` counts what was read whole.
  bool reads_parts() const { return safetensors_.has_value(); }
  uint64_t bytes_read() const { return bin_ ? bin_->bytes_read() : 0; }

  /// Of a safetensors file; empty for a .bin.
  const SafetensorsMetadata& metadata() const;

 private:
  std::optional<SafetensorsFile> safetensors_;
  std::optional<TorchBinFile> bin_;
};

}  // namespace oslo
