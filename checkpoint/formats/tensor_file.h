#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
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
  using Visit = std::function<void(const at::Tensor& contents)>;

  virtual ~TensorFile() = default;

  virtual std::vector<std::string> keys() const = 0;
  /// Throws `Error` naming file and key where it is absent.
  virtual Entry entry(const std::string& key) const = 0;

  /// Calls `visit` with the contents of a tensor, on the CPU, not to be written and not to be kept.
  /// Where `reads_parts` only what `visit` touches is read; the contents may then have one
  /// dimension more, of the bytes of an element (`SafetensorsFile::visit`).
  virtual void visit(const std::string& key, const Visit& visit) const = 0;

  /// Whether `visit` reads no more than is touched; else it is what `bytes_read` counts.
  virtual bool reads_parts() const = 0;
  virtual uint64_t bytes_read() const { return 0; }

  /// Free text beside the tensors; empty where the format has none.
  virtual const std::map<std::string, std::string>& metadata() const {
    static const std::map<std::string, std::string> none;
    return none;
  }
};

}  // namespace oslo
