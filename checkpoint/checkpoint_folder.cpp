#include "checkpoint/checkpoint_folder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "checkpoint/hash.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/staging_directory.h"
#include "checkpoint/torch_bin.h"
#include "mpu/error.h"
#include "parallelizers/placement/value.h"

namespace oslo {

namespace fs = std::filesystem;

/// A file of either format. Tensors of a safetensors file are read one by one, a bin file at once.
class CheckpointFolder::TensorFile {
 public:
  explicit TensorFile(const fs::path& path) : path_(path) {
    if (path.extension() == ".bin") {
      state_ = read_torch_bin(path);
    } else {
      file_.emplace(path);
    }
  }

  at::Tensor read(const std::string& name) const {
    if (file_) return file_->read(name);
    const at::Tensor* tensor = state_.find(name);
    OSLO_CHECK(tensor != nullptr, path_.string(), " has no tensor '", name, "' among its ",
               state_.size());
    return *tensor;
  }

  /// Lists the file's tensors in an index, each as a whole.
  void list_in(CheckpointIndex& index, const std::string& name) const {
    for (const auto& [key, tensor] : state_) {
      index.tensors[key] = {tensor.sizes().vec(), tensor.scalar_type(), {{name, {}}}};
    }
    if (!file_) return;
    for (const std::string& key : file_->keys()) {
      index.tensors[key] = {file_->shape(key), file_->dtype(key), {{name, {}}}};
    }
    // Hugging Face's way to say that a tensor has a second name.
    for (const auto& [key, value] : file_->metadata()) {
      if (index.tensors.count(value) > 0 && index.tensors.count(key) == 0) index.ties[key] = value;
    }
  }

 private:
  fs::path path_;
  std::optional<SafetensorsFile> file_;
  StateDict state_;
};

CheckpointFolder::CheckpointFolder(const fs::path& path) : path_(find_committed(path)) {
  if (fs::is_regular_file(path_)) {
    const std::string file = path_.filename();
    path_ = path_.parent_path();
    index_file(file);
    return;
  }
  OSLO_CHECK(fs::is_directory(path_), "there is no checkpoint ", path_.string(),
             ": the folder does not exist");
  if (fs::exists(path_ / kIndexName)) {
    hashed_ = true;
    index_ = CheckpointIndex::read(path_ / kIndexName);
    drop_spare_files();
  } else if (fs::exists(path_ / "model.safetensors")) {
    index_file("model.safetensors");
  } else if (fs::exists(path_ / "pytorch_model.bin")) {
    index_file("pytorch_model.bin");
  } else {
    fail("there is no checkpoint in ", path_.string(), ": ",
         fs::is_empty(path_) ? "the folder is empty"
                             : c10::str("it has neither ", kIndexName,
                                        ", model.safetensors nor pytorch_model.bin"));
  }
}

CheckpointFolder::~CheckpointFolder() = default;

void CheckpointFolder::index_file(const std::string& file) {
  const std::string kind = fs::path(file).extension();
  OSLO_CHECK(kind == ".safetensors" || kind == ".bin", (path_ / file).string(),
             " is no checkpoint: give a folder, a .safetensors or a .bin file");
  index_.files[file] = {fs::file_size(path_ / file), ""};
  open(file).list_in(index_, file);
}

void CheckpointFolder::drop_spare_files() {
  using Part = CheckpointIndex::Part;
  std::map<std::string, bool> there;
  for (const auto& [name, _] : index_.files) there[name] = fs::exists(path_ / name);
  // Backwards, because of two equal files the first is kept: safetensors before bin.
  for (auto file = there.rbegin(); file != there.rend(); ++file) {
    const std::string& name = file->first;
    const std::string* only_here = nullptr;
    bool used = false;
    for (const auto& [key, tensor] : index_.tensors) {
      for (const Part& part : tensor.parts) {
        if (part.file != name) continue;
        used = true;
        const auto twin =
            std::find_if(tensor.parts.begin(), tensor.parts.end(), [&](const Part& other) {
              return other.file != name && there[other.file] && other.cuts == part.cuts;
            });
        if (twin == tensor.parts.end()) only_here = &key;
      }
      if (only_here != nullptr) break;
    }
    if (used && only_here == nullptr) {
      for (auto& [_, tensor] : index_.tensors) {
        std::erase_if(tensor.parts, [&](const Part& part) { return part.file == name; });
      }
      index_.files.erase(name);
      file->second = false;
      continue;
    }
    OSLO_CHECK(file->second, "the checkpoint ", path_.string(), " lacks its file ", name,
               only_here == nullptr ? "" : c10::str(", which holds '", *only_here, "'"));
  }
}

void CheckpointFolder::verify(int share, int shares) const {
  if (!hashed_) return;
  int number = 0;
  for (const auto& [name, file] : index_.files) {
    if (number++ % shares != share) continue;
    const fs::path path = path_ / name;
    const uint64_t bytes = fs::file_size(path);
    OSLO_CHECK(bytes == file.bytes, path.string(), " has ", bytes, " bytes, ", kIndexName, " says ",
               file.bytes, ": it is cut or from another save");
    OSLO_CHECK(sha256_file(path) == file.sha256, path.string(),
               " is damaged: its contents do not "
               "have the hash that ",
               kIndexName, " says; copy or save the checkpoint again");
  }
}

CheckpointFolder::TensorFile& CheckpointFolder::open(const std::string& file) const {
  std::unique_ptr<TensorFile>& opened = open_[file];
  if (!opened) opened = std::make_unique<TensorFile>(path_ / file);
  return *opened;
}

at::Tensor CheckpointFolder::read_part(const std::string& name,
                                       const CheckpointIndex::Part& part) const {
  const CheckpointIndex::Tensor& saved = index_.tensors.at(name);
  std::vector<int64_t> shape = saved.shape;
  for (const auto& [dim, rank, cut] : part.cuts) shape[dim] = cut->local_size(rank);
  at::Tensor tensor = open(part.file).read(name);
  OSLO_CHECK(tensor.sizes() == shape && tensor.scalar_type() == saved.dtype,
             (path_ / part.file).string(), ": '", name, "' is ", tensor.scalar_type(), " ",
             tensor.sizes(), ", the index says ", saved.dtype, " ", c10::IntArrayRef(shape));
  return tensor;
}

at::Tensor CheckpointFolder::read(const std::string& name, const LayoutPtr& wanted) const {
  const CheckpointIndex::Tensor& saved = index_.tensors.at(name);
  const CheckpointIndex::Cuts cuts = cuts_of(wanted);
  for (const auto& part : saved.parts) {
    if (part.cuts == cuts) return read_part(name, part);
  }
  for (const auto& part : saved.parts) {
    if (!part.cuts.empty()) continue;
    // A copy, so that the whole one can go.
    return local_part(read_part(name, part), *wanted).clone(at::MemoryFormat::Contiguous);
  }
  fail("the checkpoint ", path_.string(), " was saved in another layout (", describe(index_.mesh),
       "): '", name, "' lies there as [", to_string(saved.parts.front().cuts),
       "], this model wants it as [", to_string(cuts),
       "]. Load it in the layout it was saved in, save it with "
       "SaveOptions().merge_checkpoints(true), and load the merged folder");
}

std::string CheckpointFolder::identity() const {
  std::string text;
  for (const auto& [name, file] : index_.files) {
    text += c10::str(name, " ", file.bytes, " ", file.sha256, "\n");
  }
  return text;
}

const std::string* CheckpointFolder::resolve(const std::string& name) const {
  const auto tensor = index_.tensors.find(name);
  if (tensor != index_.tensors.end()) return &tensor->first;
  const auto tie = index_.ties.find(name);
  return tie == index_.ties.end() ? nullptr : &tie->second;
}

}  // namespace oslo
