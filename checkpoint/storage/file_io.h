#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <memory>
#include <string>

#include "checkpoint/storage/content_hash.h"

namespace oslo {

/// A file being written from its start (created or truncated), and the hash of what was written.
/// The system is asked to begin with the disk's part while the next bytes come. Every failure
/// throws `Error` with the path, the bytes reached and the system's reason; a full disk is one of
/// them.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(const void* data, uint64_t bytes);
  /// Closes, reporting what the system only reports then. The destructor closes silently.
  void close();
  const std::filesystem::path& path() const { return path_; }
  /// Of everything written so far.
  FileContents contents() const { return {written_, FileContents::Hash::xxh128, hash_.hex()}; }

 private:
  void begin_writeback();

  std::filesystem::path path_;
  int fd_;
  uint64_t written_ = 0;
  uint64_t on_its_way_ = 0;
  ContentHash hash_;
};

/// A regular file open for reading at any position; `read` may be called from several threads.
/// Copies are the same open file.
class InputFile {
 public:
  /// Throws `Error` if the file is missing, unreadable or no regular file.
  explicit InputFile(std::filesystem::path path);
  /// The file of that name in an open folder, whatever the folder is called by now. `path` is for
  /// messages.
  InputFile(std::filesystem::path path, int folder);

  /// Bytes in the file when it was opened.
  uint64_t size() const { return size_; }
  /// Exactly `bytes` bytes from `offset`; throws `Error` if the file ends before. Files are never
  /// mapped: one that another program cuts meanwhile would end the process (SIGBUS).
  void read(void* into, uint64_t bytes, uint64_t offset) const;
  const std::filesystem::path& path() const { return path_; }

  /// Whether its name in the open folder still leads to it, and nobody has written into it since it
  /// was opened.
  bool in_place(int folder) const;
  /// The latter alone: what was read of it is of one time, whatever its name leads to by now.
  bool is_as_opened() const;

 private:
  std::filesystem::path path_;
  std::shared_ptr<const int> fd_;
  uint64_t size_ = 0;
  timespec written_ = {};
};

/// All of a file as text; throws `Error` where it has more than `most` bytes.
std::string read_file(const InputFile& file, uint64_t most);

/// Waits until the contents of a file (or the entries of a folder) are on the disk.
void sync_file(const std::filesystem::path& path);

}  // namespace oslo
