#include "checkpoint/directory/checkpoint_folder.h"

#include <algorithm>
#include <new>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpoint/directory/checkpoint_series.h"
#include "checkpoint/storage/file_hash.h"
#include "checkpoint/storage/file_io.h"
#include "checkpoint/storage/format.h"
#include "checkpoint/storage/outside_text.h"
#include "checkpoint/storage/staging_directory.h"
#include "mpu/base/error.h"

namespace oslo {

namespace fs = std::filesystem;

namespace {

/// Whether a save of this library put an index with its hash beside a file. A .bin has checksums of
/// its own.
bool was_indexed(const TensorFile& file) {
  return file.metadata().count(kIndexName) > 0;
}

/// Lists a file's tensors in an index, each as a whole.
void list_tensors(const TensorFile& file, const std::string& name, CheckpointIndex& index) {
  for (const std::string& key : file.keys()) {
    const TensorFile::Entry entry = file.entry(key);
    index.tensors[key] = {entry.shape, entry.dtype, {{name, {}}}};
  }
  // Hugging Face's way to say that a tensor has a second name.
  for (const auto& [key, value] : file.metadata()) {
    if (index.tensors.count(value) > 0 && index.tensors.count(key) == 0) index.ties[key] = value;
  }
}

/// All names of the tensors whose transposes the files hold.
std::set<std::string> transposed_names(const CheckpointIndex& index) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : index.tensors) {
    if (tensor.transposed) names.insert(name);
  }
  for (const auto& [name, tensor] : index.ties) {
    if (names.count(tensor) > 0) names.insert(name);
  }
  return names;
}

/// Whether something of a tensor lies in two files.
bool lies_twice(const CheckpointIndex::Tensor& tensor) {
  if (tensor.parts.size() < 2) return false;
  uint64_t elements = 1, found = 0;
  for (const int64_t size : tensor.shape) elements *= static_cast<uint64_t>(size);
  c10::SmallVector<int64_t, 8> sizes;
  for (const CheckpointIndex::Part& part : tensor.parts) {
    sizes.assign(tensor.shape.begin(), tensor.shape.end());
    for (const auto& [dim, rank, cut] : part.cuts) sizes[dim] = cut->local_size(rank);
    uint64_t own = 1;
    for (const int64_t size : sizes) own *= static_cast<uint64_t>(size);
    found += own;
  }
  return found != elements || elements == 0;
}

}  // namespace

CheckpointFolder::CheckpointFolder(const fs::path& path) try {
  OSLO_CHECK_AS(file, !path.empty(),
                "there is no checkpoint under an empty path; give a folder or a file");
  OSLO_CHECK_AS(file, path.native().find('\0') == std::string::npos, "there is no checkpoint ",
                printable_path(path), ": no file has a NUL byte in its name");
  read_in_place(
      path, [&] { open(path); }, [&] { return files_ != nullptr; }, [&] { return in_place(); });
} catch (const fs::filesystem_error& error) {
  fail_as(ErrorKind::file, "cannot read the checkpoint ", printable_path(path), ": ",
          error.code().message());
} catch (const std::bad_alloc&) {
  fail_as(ErrorKind::file, "the checkpoint ", printable_path(path),
          " takes more memory than there is");
}

void CheckpointFolder::open(const fs::path& path) {
  reader_.reset();
  files_.reset();
  index_ = CheckpointIndex();
  checksum_.clear();
  hashed_.clear();
  warning_.clear();
  if (fs::is_regular_file(path)) {
    // By the name that was given, not by that of the file a link leads to: caches keep files under
    // their hashes.
    const fs::path file = fs::absolute(path);
    path_ = file.parent_path();
    files_ = std::make_shared<OpenFolder>(path_);
    reader_ = std::make_unique<RegionReader>(files_);
    index_file(file.filename());
    return;
  }
  const LatestCheckpoint latest = latest_checkpoint(find_committed(path));
  path_ = latest.path;
  warning_ = latest.warning;
  const fs::file_status status = fs::status(path_);
  OSLO_CHECK_AS(file, fs::exists(status), "there is no checkpoint ", printable_path(path_),
                ": the folder does not exist");
  OSLO_CHECK_AS(file, fs::is_directory(status), printable_path(path_),
                " is no checkpoint: it is neither a folder nor a regular file");
  files_ = std::make_shared<OpenFolder>(path_);
  reader_ = std::make_unique<RegionReader>(files_);
  open_folder();
}

void CheckpointFolder::open_folder() {
  if (files_->has(kIndexName)) {
    read_index();
    for (const auto& [name, file] : index_.files) {
      if (!files_->has(name)) continue;
      files_->hold(name);
      hashed_.emplace(name, file);
    }
    drop_spare_files();
    return;
  }
  const auto file_of = [](const FormatNames& names) { return model_file(names.format); };
  for (const FormatNames& names : kFormats) {
    if (files_->has(file_of(names))) return index_file(file_of(names));
  }
  fail_as(ErrorKind::file, "there is no checkpoint in ", printable_path(path_), ": ",
          fs::is_empty(path_)
              ? "the folder is empty"
              : c10::str("it has neither ", kIndexName, ", ", each_format(file_of, " nor ")));
}

void CheckpointFolder::read_index() {
  files_->hold(kIndexName);
  index_ = CheckpointIndex::read(files_->open(kIndexName), &checksum_);
}

CheckpointFolder::~CheckpointFolder() = default;

void CheckpointFolder::index_file(const std::string& file) {
  OSLO_CHECK_AS(
      file, format_of_file(file), printable_path(path_ / file),
      " is no checkpoint: give a folder, ",
      each_format([](const FormatNames& names) { return c10::str("a ", names.extension); }, " or "),
      " file");
  files_->hold(file);
  CheckpointIndex::File entry;
  std::set<std::string> transposed;
  entry.bytes = files_->open(file).size();
  if (files_->has(kIndexName)) {
    read_index();
    const CheckpointIndex beside = std::exchange(index_, CheckpointIndex());
    const auto listed = beside.files.find(file);
    if (listed != beside.files.end()) {
      hashed_.emplace(file, entry = listed->second);
      transposed = transposed_names(beside);
    }
  }
  index_.files[file] = entry;
  const TensorFile& opened = reader_->open(file);
  list_tensors(opened, file, index_);
  for (auto& [name, tensor] : index_.tensors) {
    tensor.transposed = tensor.shape.size() == 2 && transposed.count(name) > 0;
    if (tensor.transposed) std::swap(tensor.shape[0], tensor.shape[1]);
  }
  if (hashed_.empty() && was_indexed(opened)) {
    warning_ = c10::str(printable_path(path_ / file), " was saved with ", kIndexName,
                        ", which is gone: its contents are not checked");
  }
}

void CheckpointFolder::drop_spare_files() {
  using Part = CheckpointIndex::Part;
  struct Use {
    bool there = false;
    bool used = false;                       // some tensor has a part in it
    const std::string* only_here = nullptr;  // one that has a part nowhere else
  };
  // One look at each part, of which there may be ranks times tensors: only tensors of which
  // something lies in two files are compared file by file.
  std::vector<std::pair<const std::string*, const CheckpointIndex::Tensor*>> twice;
  for (const auto& [key, tensor] : index_.tensors) {
    if (lies_twice(tensor)) twice.emplace_back(&key, &tensor);
  }
  if (twice.empty() && hashed_.size() == index_.files.size()) return;
  std::map<std::string, Use> uses;
  for (const auto& [name, _] : index_.files) uses[name].there = hashed_.count(name) > 0;
  std::unordered_map<const std::string*, Use*> by_address;
  for (const auto& [key, tensor] : index_.tensors) {
    const bool in_two = lies_twice(tensor);
    for (const Part& part : tensor.parts) {
      Use*& use = by_address[&part.file.text()];
      if (use == nullptr) use = &uses.at(part.file);
      use->used = true;
      // A folder whose optimizer has been removed is a model's.
      if (!in_two && (use->there || !is_optimizer_key(key))) use->only_here = &key;
    }
  }
  // Backwards, because of two equal files the first is kept: safetensors before bin.
  for (auto file = uses.rbegin(); file != uses.rend(); ++file) {
    auto& [name, use] = *file;
    for (const auto& [key, tensor] : twice) {
      if (use.only_here != nullptr) break;
      for (const Part& part : tensor->parts) {
        if (part.file != name) continue;
        const auto twin =
            std::find_if(tensor->parts.begin(), tensor->parts.end(), [&](const Part& other) {
              return other.file != name && uses.at(other.file).there && other.cuts == part.cuts;
            });
        const bool missed = use.there || !is_optimizer_key(*key);
        if (twin == tensor->parts.end() && missed) use.only_here = key;
      }
    }
    if (use.only_here != nullptr || (use.there && !use.used)) {
      OSLO_CHECK_AS(file, use.there, "the checkpoint ", printable_path(path_), " lacks its file ",
                    printable(name), ", which holds '", printable(*use.only_here), "'");
      continue;
    }
    for (auto& [_, tensor] : index_.tensors) {
      std::erase_if(tensor.parts, [&](const Part& part) { return part.file == name; });
    }
    index_.files.erase(name);
    use.there = false;
  }
  std::erase_if(index_.tensors, [](const auto& entry) { return entry.second.parts.empty(); });
}

uint64_t CheckpointFolder::hashed_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [_, file] : hashed_) bytes += file.bytes;
  return bytes;
}

void CheckpointFolder::verify(int share, int shares) const {
  int number = 0;
  for (const auto& [name, file] : hashed_) {
    if (number++ % shares != share) continue;
    const InputFile contents = files_->open(name);
    const std::string where = printable_path(contents.path());
    OSLO_CHECK_AS(file, contents.size() == file.bytes, where, " has ", contents.size(), " bytes, ",
                  kIndexName, " says ", file.bytes, ": it is cut or from another save");
    OSLO_CHECK_AS(file, hash_file(contents, file.kind) == file.hash, where,
                  " is damaged: its contents do not have the hash that ", kIndexName,
                  " says; copy or save the checkpoint again");
  }
}

at::Tensor CheckpointFolder::read(const std::string& name, const Region& wanted) const {
  return reader_->read(name, index_.tensors.at(name), wanted);
}

at::Tensor CheckpointFolder::read(const std::string& name, const LayoutPtr& wanted) const {
  return read(name, Region(index_.tensors.at(name).shape, wanted));
}

const ReadCount& CheckpointFolder::count() const {
  return reader_->count();
}

std::optional<InputFile> CheckpointFolder::find_file(const std::string& name) const {
  if (hashed_.count(name) == 0) return std::nullopt;
  return files_->open(name);
}

std::optional<InputFile> CheckpointFolder::find_any_file(const std::string& name) const {
  if (hashed_.empty() && files_->has(name)) return files_->open(name);
  return find_file(name);
}

nlohmann::json CheckpointFolder::read_extra() const {
  const std::optional<InputFile> file = find_file(kExtraName);
  OSLO_CHECK_AS(file, file, "the checkpoint ", printable_path(path_), " has no ", kExtraName,
                ": save it with SaveOptions().extra(...), or load it without");
  try {
    return read_json(read_file(*file, kExtraLimits.bytes), kExtraLimits);
  } catch (const Error& error) {
    fail_as(ErrorKind::file, printable_path(file->path()), ": ", error.what());
  }
}

std::string CheckpointFolder::identity() const {
  std::string text = checksum_ + "\n";
  for (const auto& [name, file] : index_.files) {
    text += c10::str(name, " ", file.bytes, " ", file.hash, "\n");
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
