#pragma once

#include <filesystem>
#include <memory>

#include "checkpoint/folders/folder_source.h"

namespace oslo {

/// Opens a checkpoint, as `CheckpointFolder` does, or a folder of Hugging Face's, by the table of
/// its family (`PretrainedFamily`). Throws `Error` for what neither can read, and for a config.json
/// of a family that is not known: which of its matrices lie transposed is not known either.
std::unique_ptr<FolderSource> open_source(const std::filesystem::path& path);

}  // namespace oslo
