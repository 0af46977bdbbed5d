#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "mpu/world/world.h"

namespace oslo {

/// Rank 0 writes a file, with the folders above it. Throws `FileError` on every rank where it
/// cannot. Collective over the world.
void write_text_once(const World& world, const std::filesystem::path& path,
                     const std::function<std::string()>& text);

}  // namespace oslo
