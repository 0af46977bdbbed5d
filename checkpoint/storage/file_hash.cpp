#include "checkpoint/storage/file_hash.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "checkpoint/storage/file_io.h"
#include "checkpoint/storage/hash.h"

namespace oslo {

std::string hash_file(const std::filesystem::path& path, FileContents::Hash kind) {
  return hash_file(InputFile(path), kind);
}

std::string hash_file(const InputFile& file, FileContents::Hash kind) {
  if (kind == FileContents::Hash::sha256) return sha256_file(file);
  // Small enough to stay in the processor's cache between the read and the hash.
  std::vector<char> buffer(std::min<uint64_t>(size_t{256} << 10, file.size()));
  ContentHash hash;
  for (uint64_t at = 0; at < file.size();) {
    const uint64_t bytes = std::min<uint64_t>(buffer.size(), file.size() - at);
    file.read(buffer.data(), bytes, at);
    hash.update(buffer.data(), bytes);
    at += bytes;
  }
  return hash.hex();
}

}  // namespace oslo
