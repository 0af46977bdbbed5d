#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "checkpoint/formats/json/bounded_json.h"
#include "checkpoint/index/checkpoint_index.h"
#include "checkpoint/regions/region_reader.h"
#include "checkpoint/storage/open_folder.h"

namespace oslo {

/// What a program resumes from, beside the tensors, and what it may have.
inline constexpr char kExtraName[] = "extra.json";
inline constexpr JsonLimits kExtraLimits = {.bytes = 16 << 20, .values = 1 << 20, .depth = 16};

/// A checkpoint opened for reading, whichever kind it is: a parallel or merged one that this
/// library saved (with an index), or another program's model.safetensors or pytorch_model.bin. Its
/// index says of each tensor where its parts lie, and `read` makes of them what any place wants,
/// whatever was cut then and now (`RegionReader`).
///
/// All of it is of one save: the files are those of the folder that the index was read in, also
/// when another save has replaced it since (`OpenFolder`).
class CheckpointFolder {
 public:
  /// `path` is a folder, or one *.safetensors or *.bin file; either may be a link to where it lies,
  /// under any name. A folder whose save was killed while it took its name is found under its other
  /// one. A series (`SaveOptions::step`) stands for its latest. Of a merged checkpoint's two files
  /// one is enough, and safetensors is preferred. Throws `Error` naming the folder or file:
  /// missing, empty, no checkpoint, a file that the index lists and that is not there.
  explicit CheckpointFolder(const std::filesystem::path& path);
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  const CheckpointIndex& index() const { return index_; }
  const std::filesystem::path& path() const { return path_; }

  /// Compares sizes and hashes of the files with the index, where there is one, also of those that
  /// are not read: every `shares`-th file from `share` on, so that ranks can divide the work.
  /// Throws `Error` naming the file.
  void verify(int share = 0, int shares = 1) const;

  /// What `verify` compares, by name: all files that are there and have hashes; and their bytes.
  const std::map<std::string, CheckpointIndex::File>& hashed() const { return hashed_; }
  uint64_t hashed_bytes() const;

  /// Whether what was opened is still what is there: no save has replaced it, nobody has written
  /// into it. Where it is not, an error of the calls here may be of that.
  bool in_place() const { return files_ != nullptr && files_->in_place(); }
  /// Whether what is read of it is of one time (`OpenFolder::is_as_opened`).
  bool is_as_opened() const { return files_ != nullptr && files_->is_as_opened(); }

  /// A line for whoever loads: that the contents were saved with hashes, and the index that has
  /// them is gone. Empty where there is nothing to say.
  const std::string& warning() const { return warning_; }

  /// What a place that holds `wanted` of the tensor has, a new CPU tensor, not marked. All loading
  /// comes through here. Throws `Error` naming file and tensor.
  at::Tensor read(const std::string& name, const Region& wanted) const;
  /// The same for this rank's part under a layout of the tensor's global shape (null: all of it).
  at::Tensor read(const std::string& name, const LayoutPtr& wanted) const;

  /// What the reads so far took.
  const ReadCount& count() const;

  /// A file of the folder that the index lists, beside those that tensors lie in; nothing where it
  /// does not, or where it is not there.
  std::optional<InputFile> find_file(const std::string& name) const;
  /// The same, and where no index says what belongs to the checkpoint, any file of that name.
  std::optional<InputFile> find_any_file(const std::string& name) const;

  /// What `SaveOptions::extra` gave. Throws `Error` naming the file where it is not there.
  nlohmann::json read_extra() const;

  /// The index's checksum, and names, sizes and hashes of the files as text: differs where ranks
  /// see different checkpoints. Without an index it does not speak of contents.
  std::string identity() const;

  /// The tensor that `name` stands for, itself or the one it is tied to; null where the checkpoint
  /// does not know the name.
  const std::string* resolve(const std::string& name) const;

 private:
  void open(const std::filesystem::path& path);
  void read_index();
  void open_folder();
  void index_file(const std::string& file);
  void drop_spare_files();

  std::filesystem::path path_;
  CheckpointIndex index_;
  std::string checksum_;  // of the index
  std::map<std::string, CheckpointIndex::File> hashed_;
  std::string warning_;
  std::shared_ptr<OpenFolder> files_;
  std::unique_ptr<RegionReader> reader_;
};

}  // namespace oslo
