#include "checkpoint/pretrained/pretrained_folder.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "checkpoint/formats/bounded_json.h"
#include "checkpoint/formats/torch_bin.h"
#include "checkpoint/pretrained/weight_index.h"
#include "checkpoint/storage/file_io.h"
#include "checkpoint/storage/outside_text.h"
#include "mpu/error.h"

namespace oslo {
namespace {

namespace fs = std::filesystem;

constexpr JsonLimits kConfigLimits = {.bytes = 16 << 20, .values = 1 << 20, .depth = 32};

}  // namespace

nlohmann::json read_pretrained_config(const fs::path& folder) {
  const fs::path path = folder / kConfigName;
  try {
    nlohmann::json config =
        read_json(read_file(InputFile(path), kConfigLimits.bytes), kConfigLimits);
    OSLO_CHECK(config.is_object(), "it is no JSON object");
    return config;
  } catch (const Error& error) {
    fail(printable_path(path), ": ", error.what());
  }
}

/// A file of either format. Tensors of a safetensors file are read part by part, a .bin at once.
class PretrainedFolder::File {
 public:
  explicit File(const fs::path& path) {
    if (path.extension() == ".bin") {
      state_ = read_torch_bin(path);
    } else {
      file_.emplace(path);
    }
  }

  /// Calls `take` with the name, shape and type of each tensor.
  template <typename Take>
  void for_each(const Take& take) const {
    for (const auto& [name, tensor] : state_)
      take(name, tensor.sizes().vec(), tensor.scalar_type());
    if (!file_) return;
    for (const std::string& name : file_->keys())
      take(name, file_->shape(name), file_->dtype(name));
  }

  at::Tensor read(const std::string& name, const SafetensorsFile::Selection& select) const {
    return file_ ? file_->read_part(name, select) : select(state_.at(name));
  }

 private:
  std::optional<SafetensorsFile> file_;
  StateDict state_;
};

PretrainedFolder::PretrainedFolder(fs::path path) try : path_(std::move(path)) {
  OSLO_CHECK(fs::is_directory(path_), "there is no folder ", printable_path(path_),
             "; give one with config.json and model.safetensors");
  config_ = std::make_unique<nlohmann::json>(read_pretrained_config(path_));
  for (const char* name : {"model.safetensors", "pytorch_model.bin"}) {
    const fs::path index = path_ / (std::string(name) + ".index.json");
    if (fs::exists(path_ / name)) {
      open(name);
      return;
    }
    if (fs::exists(index)) {
      open_all(index);
      return;
    }
  }
  fail("there is no model in ", printable_path(path_),
       ": it has neither model.safetensors nor pytorch_model.bin, nor an index of several such "
       "files");
} catch (const fs::filesystem_error& error) {
  fail("cannot read the folder ", printable_path(error.path1()), ": ", error.code().message());
}

PretrainedFolder::~PretrainedFolder() = default;

void PretrainedFolder::open(const std::string& name) {
  std::unique_ptr<File>& file = files_[name];
  file = std::make_unique<File>(path_ / name);
  file->for_each([&](const std::string& tensor, std::vector<int64_t> shape, c10::ScalarType dtype) {
    const auto [known, fresh] = tensors_.emplace(tensor, Entry{std::move(shape), dtype, name});
    OSLO_CHECK(fresh, printable_path(path_), " has the tensor '", printable(tensor), "' in ",
               printable(known->second.file), " and in ", printable(name));
  });
}

void PretrainedFolder::open_all(const fs::path& index) {
  const std::map<std::string, std::string> listed = WeightIndex::read(index).files;
  for (const auto& [_, file] : listed) {
    if (files_.count(file) == 0) open(file);
  }
  const std::string where = printable_path(index);
  for (const auto& [tensor, file] : listed) {
    const auto found = tensors_.find(tensor);
    OSLO_CHECK(found != tensors_.end() && found->second.file == file, where, " says that '",
               printable(tensor), "' lies in ", printable(file), ", where it is not");
  }
  for (const auto& [tensor, entry] : tensors_) {
    OSLO_CHECK(listed.count(tensor) > 0, where, " does not list '", printable(tensor),
               "', which lies in ", printable(entry.file));
  }
}

at::Tensor PretrainedFolder::read(const std::string& name,
                                  const SafetensorsFile::Selection& select) const {
  return files_.at(tensors_.at(name).file)->read(name, select);
}

std::string PretrainedFolder::identity() const {
  std::string text = config_->dump() + "\n";
  for (const auto& [name, entry] : tensors_) {
    text +=
        c10::str(name, " ", entry.file, " ", entry.dtype, " ", c10::IntArrayRef(entry.shape), "\n");
  }
  return text;
}

}  // namespace oslo
