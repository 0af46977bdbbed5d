#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace oslo::fuzz {

/// A zip archive of stored records that says 0 for every checksum, which readers take for "written
/// without": so that a fuzzer gets past the checksums.
inline std::string zip_text(const std::vector<std::pair<std::string, std::string>>& records) {
  std::string archive, directory;
  const auto put = [](std::string& to, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) to.push_back(static_cast<char>(value >> (8 * i)));
  };
  // What the record's own header and its entry in the directory have in common.
  const auto put_common = [&](std::string& to, const auto& record) {
    put(to, 20, 2);  // version that can read it
    put(to, 0, 2);   // flags
    put(to, 0, 2);   // stored
    put(to, 0, 4);   // time
    put(to, 0, 4);   // checksum
    put(to, record.second.size(), 4);
    put(to, record.second.size(), 4);
    put(to, record.first.size(), 2);
    put(to, 0, 2);  // no extra field
  };
  for (const auto& record : records) {
    const size_t begin = archive.size();
    put(archive, 0x04034b50, 4);
    put_common(archive, record);
    archive += record.first + record.second;
    put(directory, 0x02014b50, 4);
    put(directory, 20, 2);  // version that made it
    put_common(directory, record);
    put(directory, 0, 2);  // no comment
    put(directory, 0, 2);  // disk
    put(directory, 0, 6);  // attributes
    put(directory, begin, 4);
    directory += record.first;
  }
  const size_t begin = archive.size();
  archive += directory;
  put(archive, 0x06054b50, 4);
  put(archive, 0, 4);  // disks
  put(archive, records.size(), 2);
  put(archive, records.size(), 2);
  put(archive, directory.size(), 4);
  put(archive, begin, 4);
  put(archive, 0, 2);  // no comment
  return archive;
}

}  // namespace oslo::fuzz
