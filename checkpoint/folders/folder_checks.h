#pragma once

#include <filesystem>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/folders/folder_progress.h"

namespace oslo {

/// Checks the hashes of all files that have any (`CheckpointFolder::verify`).
void verify_hashes(const CheckpointFolder& folder, FolderProgress& progress);

/// Throws where `from` is `to`, which would replace it.
void check_folders(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace oslo
