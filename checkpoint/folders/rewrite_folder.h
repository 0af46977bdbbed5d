#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "checkpoint/folders/folder_plan.h"
#include "checkpoint/folders/folder_progress.h"

namespace oslo {

/// What `verify_folder` went over.
struct VerifiedFolder {
  size_t files = 0;    ///< whose hashes were compared
  size_t tensors = 0;  ///< whose parts were read
  uint64_t bytes = 0;  ///< of these tensors
};

// Checkpoint folders as files, on one process and without a model. Each is read and written tensor
// by tensor: memory for two of them, whatever the folder's size (of a .bin's storages, of which a
// tensor may be a small part). `from` may be a folder of Hugging Face's of a family that is known
// (`PretrainedSource`). Progress may be null. Errors are those of `open_source`: they name file and
// tensor.

/// Writes the folder `to` with the tensors of `from`, and what lies beside them (config.json,
/// extra.json), as `plan` makes of its index. All hashes of `from` are checked first. `to` takes
/// its name when all of it is on the disk, and what was there before stays until then
/// (`StagingDirectory`); it must not be `from`.
void rewrite_folder(const std::filesystem::path& from, const std::filesystem::path& to,
                    const std::function<FolderPlan(const CheckpointIndex&)>& plan,
                    const TellProgress& progress = nullptr);

/// Writes `to` as a folder of Hugging Face's from a checkpoint of a family that is known: its
/// config.json says which. Names and transposes are as `save_pretrained` has them; the two make the
/// same files. From another folder of Hugging Face's it has today's names in safetensors files of
/// `max_shard_bytes`. Throws `Error` where there is no config.json, or one of another family.
void rewrite_as_pretrained(const std::filesystem::path& from, const std::filesystem::path& to,
                           const TellProgress& progress = nullptr,
                           uint64_t max_shard_bytes = 5'000'000'000);

/// Reads all of a checkpoint, or of a folder of Hugging Face's: hashes, headers, checksums of
/// records, and that the parts of each tensor make it up. Throws `Error` for the first thing that
/// is wrong.
VerifiedFolder verify_folder(const std::filesystem::path& path,
                             const TellProgress& progress = nullptr);

/// What is in a checkpoint or in a folder of Hugging Face's, as text: its kind, its files, and of
/// each tensor shape, type and cut. Reads no tensor.
std::string describe_folder(const std::filesystem::path& path);

}  // namespace oslo
