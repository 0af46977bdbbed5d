#include "checkpoint/storage/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

namespace oslo {

FolderLock::FolderLock(const std::filesystem::path& folder)
    : fd_(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  // No wait of the system's: whoever holds it may have been stopped.
  constexpr auto kMost = std::chrono::seconds(10);
  constexpr auto kPause = std::chrono::milliseconds(5);
  const auto end = std::chrono::steady_clock::now() + kMost;
  while (fd_ >= 0) {
    held_ = ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
    const bool may_come = errno == EWOULDBLOCK || errno == EINTR;
    if (held_ || !may_come || std::chrono::steady_clock::now() > end) return;
    std::this_thread::sleep_for(kPause);
  }
}

FolderLock::~FolderLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace oslo
