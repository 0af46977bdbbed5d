#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "checkpoint/formats/tensor_file.h"
#include "checkpoint/regions/region.h"
#include "checkpoint/storage/open_folder.h"

namespace oslo {

/// A folder as Hugging Face's `save_pretrained` leaves it, opened for reading: config.json, and the
/// tensors in the first of these that is there, as `from_pretrained` looks for them:
/// model.safetensors, model.safetensors.index.json, pytorch_model.bin,
/// pytorch_model.bin.index.json. All of it is of one save, also when another one of this library
/// has replaced the folder since.
class PretrainedFolder {
 public:
  /// What a file says of a tensor.
  struct Entry {
    std::vector<int64_t> shape;
    c10::ScalarType dtype;
    std::string file;
  };

  /// Reads config.json and the headers of all files (of a .bin everything). Throws `Error` naming
  /// the folder, file or tensor: missing, damaged, an index that leads out of the folder, names a
  /// tensor that its file lacks, or lacks one that its file has.
  explicit PretrainedFolder(std::filesystem::path path);
  ~PretrainedFolder();
  PretrainedFolder(const PretrainedFolder&) = delete;
  PretrainedFolder& operator=(const PretrainedFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const nlohmann::json& config() const { return *config_; }
  InputFile config_file() const;
  /// Whether what was opened is still what is there. It can be read in either case.
  bool in_place() const { return folder_ != nullptr && folder_->in_place(); }
  /// Whether what is read of it is of one time (`OpenFolder::is_as_opened`).
  bool is_as_opened() const { return folder_ != nullptr && folder_->is_as_opened(); }
  /// By the names of the files.
  const std::map<std::string, Entry>& tensors() const { return tensors_; }

  /// A new contiguous CPU tensor with `wanted` of a tensor, or of its transpose: of a safetensors
  /// file no other pages are read. Throws `Error` naming file and tensor.
  at::Tensor read(const std::string& name, const Region& wanted, bool transposed) const;

  /// Names, types, shapes and files of all tensors and the config as text: differs where ranks see
  /// different folders.
  std::string identity() const;

 private:
  void open();
  void open(const std::string& name);
  void open_all(const std::string& index);

  std::filesystem::path path_;
  std::unique_ptr<OpenFolder> folder_;
  std::unique_ptr<nlohmann::json> config_;
  std::map<std::string, Entry> tensors_;
  std::map<std::string, std::unique_ptr<TensorFile>> files_;
};

/// Whether `path` is such a folder rather than a checkpoint of this library: it has no index of
/// ours, nor does its file say that it had, and it has files with an index of Hugging Face's, or a
/// config.json of a family that is known (`pretrained_families`). What it has is not checked.
bool is_pretrained_folder(const std::filesystem::path& path);

/// The same, and one whose config.json names a family that is not known.
bool is_pretrained_folder_of_any_family(const std::filesystem::path& path);

/// The name of config.json, and the limits that it is read in.
inline constexpr char kConfigName[] = "config.json";

/// A folder's config.json. Throws `Error` naming it where it is missing or no JSON object.
nlohmann::json read_pretrained_config(const std::filesystem::path& folder);
nlohmann::json read_pretrained_config(const InputFile& file);

}  // namespace oslo
