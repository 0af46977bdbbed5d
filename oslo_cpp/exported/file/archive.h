#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <compare>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/formats/torch_bin/stored_zip.h"
#include "oslo_cpp/exported/file/document.h"

namespace oslo::exported {

/// A file of Python's `torch.export.save`: a zip archive with the program as JSON and its tensors
/// as plain bytes. Nothing in it is run or unpickled to open it.
///
/// Throws `Error`, led by the file's name, for a file that is cut or no such archive, an archive
/// format, a schema or an operator set newer than LibTorch's own, a program of several models, and
/// what `StoredZip` and read_json refuse.
class Archive {
 public:
  explicit Archive(const std::filesystem::path& path);

  /// torch/_export/serde/schema.py's ExportedProgram.
  Document program() const { return {program_, file_}; }
  /// The file's name, for messages.
  const std::string& file() const { return file_; }

  bool has_tensor(const std::string& name) const { return tensors_.count(name) > 0; }
  /// The parameter, buffer or constant `name`: on the CPU, with the strides that it had. Names that
  /// Python had for one tensor are one tensor here, and those of one storage share theirs.
  at::Tensor tensor(const std::string& name);
  std::vector<int64_t> sizes(const std::string& name) const { return described(name).sizes; }
  c10::ScalarType type(const std::string& name) const { return described(name).type; }

 private:
  struct Description {
    std::string record;
    c10::ScalarType type;
    std::vector<int64_t> sizes, strides;
    int64_t offset;
    bool requires_grad;
    auto operator<=>(const Description&) const = default;
  };

  void check_format() const;
  void check_versions() const;
  /// Adds the tensors of a folder, which its config lists.
  void describe(const std::string& folder, const nlohmann::json& config);
  const Description& described(const std::string& name) const;
  const c10::Storage& storage(const std::string& record);

  std::string file_;
  StoredZip zip_;
  nlohmann::json program_;
  std::map<std::string, Description> tensors_;
  std::map<std::string, c10::Storage> storages_;
  std::map<Description, at::Tensor> loaded_;
  uint64_t loaded_bytes_ = 0;
};

}  // namespace oslo::exported
