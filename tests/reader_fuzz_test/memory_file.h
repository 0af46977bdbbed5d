#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace oslo::fuzz {

/// A file that lies in memory only, with a name under which this process can open it.
class MemoryFile {
 public:
  explicit MemoryFile(std::string_view contents) : fd_(::memfd_create("input", MFD_CLOEXEC)) {
    if (fd_ < 0) throw std::runtime_error("no file in memory can be made");
    for (size_t done = 0; done < contents.size();) {
      const ssize_t now = ::write(fd_, contents.data() + done, contents.size() - done);
      if (now <= 0) throw std::runtime_error("no room for a file in memory");
      done += static_cast<size_t>(now);
    }
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

}  // namespace oslo::fuzz
