#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "checkpoint/folders/folder_progress.h"
#include "checkpoint/index/checkpoint_index.h"
#include "checkpoint/regions/region.h"
#include "checkpoint/storage/file_io.h"

namespace oslo {

/// A folder that is rewritten, of any kind: tensors under the names and with the shapes that a
/// model has them in, whatever its files call them and however they lie there.
class FolderSource {
 public:
  virtual ~FolderSource() = default;

  /// The folder that is read: of a series one of its steps, of a single file that which it lies in.
  virtual const std::filesystem::path& path() const = 0;

  virtual const CheckpointIndex& index() const = 0;

  /// A new CPU tensor. Throws `Error` naming file and tensor.
  virtual at::Tensor read(const std::string& name, const Region& wanted) const = 0;

  /// A file that no tensor of the model lies in ("config.json"); nothing where there is none.
  virtual std::optional<InputFile> find_file(const std::string& name) const = 0;

  /// Whether what was opened is still what is there. Where it is not, an error may be of that.
  virtual bool in_place() const = 0;
  /// Whether nobody has written into it since: what was read is of one time.
  virtual bool is_as_opened() const = 0;

  /// What `verify` reads: all files that have hashes.
  virtual uint64_t hashed_bytes() const = 0;
  /// Throws `Error` naming the file that does not have its hash.
  virtual void verify(FolderProgress& progress) const = 0;
};

}  // namespace oslo
