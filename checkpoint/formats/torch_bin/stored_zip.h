#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "checkpoint/storage/file_io.h"

namespace oslo {

/// The records of a zip archive that stores them as they are, as `torch.save` does: all below one
/// folder, whose name is left out here, none compressed, so that nothing is larger than the file.
/// LibTorch's own reader inflates whatever the archive asks it to, checks no CRC and gives
/// uninitialized memory where it fails. Memory: some 150 bytes a record.
class StoredZip {
 public:
  /// Reads the directory at the end of the file. Throws `Error` naming file and record for a file
  /// that is cut or no zip, a compressed or encrypted record, one that does not lie inside the
  /// file, a name that is there twice.
  explicit StoredZip(std::filesystem::path path) : StoredZip(InputFile(std::move(path))) {}
  explicit StoredZip(InputFile file);

  bool contains(const std::string& name) const { return records_.count(name) > 0; }
  /// Bytes in a record; like `read`, throws `Error` naming file and record where it is not there.
  uint64_t size(const std::string& name) const { return record(name).size; }
  /// Reads `size(name)` bytes. Throws `Error` where they do not have the CRC-32 that the directory
  /// says. An archive that says 0 of every record was written without (PyTorch's
  /// `torch.serialization.set_crc32_options(False)`), which leaves nothing to check.
  void read(const std::string& name, void* into) const;
  /// The same as text; throws `Error` above `most` bytes.
  std::string read_text(const std::string& name, uint64_t most) const;

  uint64_t file_size() const { return file_.size(); }

 private:
  struct Record {
    uint64_t header = 0;  // where its own header lies
    uint64_t size = 0;
    uint32_t crc = 0;
  };
  struct Directory {
    uint64_t begin = 0;
    uint64_t bytes = 0;
    uint64_t records = 0;
  };

  const Record& record(const std::string& name) const;
  Directory find_directory() const;
  Directory read_wide_end(uint64_t end) const;
  void read_directory(const Directory& directory);
  /// Adds one entry of the directory; returns what follows it.
  std::string_view add(std::string_view entries);
  template <typename... Parts>
  [[noreturn]] void refuse(const Parts&... parts) const;

  InputFile file_;
  std::string folder_;        // of all records, with its slash
  uint64_t records_end_ = 0;  // where the directory begins
  bool has_checksums_ = false;
  std::unordered_map<std::string, Record> records_;
};

}  // namespace oslo
