#pragma once

#include <filesystem>
#include <string>

#include "checkpoint/storage/content_hash.h"
#include "checkpoint/storage/file_io.h"

namespace oslo {

/// Hash of a file's contents, in hexadecimal; throws `Error` if the file cannot be read.
std::string hash_file(const InputFile& file, FileContents::Hash kind = FileContents::Hash::xxh128);
std::string hash_file(const std::filesystem::path& path,
                      FileContents::Hash kind = FileContents::Hash::xxh128);

}  // namespace oslo
