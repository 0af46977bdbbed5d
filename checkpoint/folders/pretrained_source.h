#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "checkpoint/folders/folder_source.h"
#include "checkpoint/pretrained/family.h"
#include "checkpoint/pretrained/pretrained_folder.h"

namespace oslo {

/// A folder of Hugging Face's as a merged checkpoint, by its family's table: matrices as LibTorch
/// has them, today's names, and nothing that no parameter stands behind. Where config.json's
/// "architectures" names a model with a head and no file has the family's prefix, names get it, as
/// `from_pretrained` does. Ties are not told: which of two names a model has is the model's.
class PretrainedSource : public FolderSource {
 public:
  /// Throws `Error` as `PretrainedFolder` does, for a family that is not known, and where two
  /// tensors of the files stand for one.
  explicit PretrainedSource(const std::filesystem::path& path);

  const std::filesystem::path& path() const override { return folder_.path(); }
  const CheckpointIndex& index() const override { return index_; }
  at::Tensor read(const std::string& name, const Region& wanted) const override;
  /// config.json alone.
  std::optional<InputFile> find_file(const std::string& name) const override;
  bool in_place() const override { return folder_.in_place(); }
  bool is_as_opened() const override { return folder_.is_as_opened(); }
  /// The format has none.
  uint64_t hashed_bytes() const override { return 0; }
  void verify(FolderProgress&) const override {}

 private:
  struct Origin {
    std::string name;  ///< in the files
    bool transposed = false;
  };

  PretrainedFolder folder_;
  CheckpointIndex index_;
  std::map<std::string, Origin> origins_;
};

}  // namespace oslo
