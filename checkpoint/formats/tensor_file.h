#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace oslo {

/// A file of tensors of any format, opened once (`open_tensor_file`): names, shapes and types are
/// known, contents are read tensor by tensor on demand.
class TensorFile {
 public:
  struct Entry {
    std::vector<int64_t> shape;
    c10::ScalarType dtype;
  };

  virtual ~TensorFile() = default;

  virtual std::vector<std::string> keys() const = 0;
  /// Throws `Error` naming file and key where it is absent.
  virtual Entry entry(const std::string& key) const = 0;

  /// The contents of a tensor, on the CPU, not to be written.
  virtual at::Tensor read(const std::string& key) const = 0;
  /// `count` elements from the one of number `first`, in the order of their bytes, where
  /// `reads_parts` says so.
  virtual at::Tensor read_elements(const std::string& key, int64_t first, int64_t count) const = 0;

  /// Whether a part of a tensor can be read; else `bytes_read` counts what was read whole.
  virtual bool reads_parts() const = 0;
  virtual uint64_t bytes_read() const { return 0; }

  /// Free text beside the tensors; empty where the format has none.
  virtual const std::map<std::string, std::string>& metadata() const {
    static const std::map<std::string, std::string> none;
    return none;
  }
};

}  // namespace oslo
