#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "checkpoint/checkpoint_index.h"
#include "checkpoint/formats/bounded_json.h"

namespace oslo {

/// What a program resumes from, beside the tensors, and what it may have.
inline constexpr char kExtraName[] = "extra.json";
inline constexpr JsonLimits kExtraLimits = {.bytes = 16 << 20, .values = 1 << 20, .depth = 16};

/// A checkpoint opened for reading, whichever kind it is: a parallel or merged one that this
/// library saved (with an index), or another program's model.safetensors or pytorch_model.bin.
class CheckpointFolder {
 public:
  /// `path` is a folder, or one *.safetensors or *.bin file; either may be a link to where it lies,
  /// under any name. A folder whose save was killed while it took its name is found under its other
  /// one. Of a merged checkpoint's two files one is enough, and safetensors is preferred. Throws
  /// `Error` naming the folder or file: missing, empty, no checkpoint, a file that the index lists
  /// and that is not there.
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

  /// A line for whoever loads: that the contents were saved with hashes, and the index that has
  /// them is gone. Empty where there is nothing to say.
  const std::string& warning() const { return warning_; }

  /// What a rank that wants the tensor under `wanted` (null: all of it) holds, on the CPU, not
  /// marked. All loading comes through here. In this version a cut tensor is read under the cut
  /// that it was saved in, a whole one into any. Throws `Error` naming tensor and both cuts.
  at::Tensor read(const std::string& name, const LayoutPtr& wanted) const;

  /// What `SaveOptions::extra` gave. Throws `Error` naming the file where it is not there.
  nlohmann::json read_extra() const;

  /// Names, sizes and hashes of the files as text: differs where ranks see different checkpoints.
  std::string identity() const;

  /// The tensor that `name` stands for, itself or the one it is tied to; null where the checkpoint
  /// does not know the name.
  const std::string* resolve(const std::string& name) const;

 private:
  class TensorFile;

  void open_folder();
  void index_file(const std::string& file);
  void drop_spare_files();
  TensorFile& open(const std::string& file) const;
  at::Tensor read_part(const std::string& name, const CheckpointIndex::Part& part) const;

  std::filesystem::path path_;
  CheckpointIndex index_;
  /// What `verify` compares, by name: all that are there.
  std::map<std::string, CheckpointIndex::File> hashed_;
  std::string warning_;
  mutable std::map<std::string, std::unique_ptr<TensorFile>> open_;
};

}  // namespace oslo
