#pragma once

#include <filesystem>

#include "checkpoint/directory/checkpoint_folder.h"
#include "checkpoint/folders/folder_progress.h"

namespace oslo {

/// Checks the hashes of all files that have any (`CheckpointFolder::verify`).
void verify_hashes(const CheckpointFolder& folder, FolderProgress& progress);

/// Throws where `to` would replace `read`, or lies in it. `read` is the folder that `from` stands
/// for: of a series one of its steps, of a single file the folder that it lies in.
void check_target(const std::filesystem::path& from, const std::filesystem::path& read,
                  const std::filesystem::path& to);

}  // namespace oslo
