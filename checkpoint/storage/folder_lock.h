#pragma once

#include <filesystem>

namespace oslo {

/// Keeps out, for as long as it lives, whoever else locks the same folder on this host; the system
/// gives the lock back when a process ends. It is a courtesy: who does not get it within ten
/// seconds, or on a file system without locks, goes on without.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Whether nobody else on this host has it.
  bool held() const { return held_; }

 private:
  int fd_ = -1;
  bool held_ = false;
};

}  // namespace oslo
