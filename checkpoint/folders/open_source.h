#pragma once

#include <filesystem>
#include <functional>
#include <memory>

#include "checkpoint/folders/folder_source.h"

namespace oslo {

/// Opens a checkpoint, as `CheckpointFolder` does, or a folder of Hugging Face's, by the table of
/// its family (`PretrainedFamily`). Throws `Error` for what neither can read, and for a config.json
/// of a family that is not known: which of its matrices lie transposed is not known either.
std::unique_ptr<FolderSource> open_source(const std::filesystem::path& path);

/// Opens it and calls `read`, both again where `read` throws `Error` and the folder has been
/// replaced meanwhile (`read_alone`).
void read_source(const std::filesystem::path& path,
                 const std::function<void(const FolderSource&)>& read);

}  // namespace oslo
