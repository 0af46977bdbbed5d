#include "checkpoint/storage/file_io.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

// Linux moves at most 2 GiB less a page per call.
constexpr uint64_t kLargestTransfer = uint64_t{1} << 30;
/// Hashed and then written while the processor's cache has it.
constexpr uint64_t kPiece = uint64_t{256} << 10;
/// After how many bytes the disk is set to work.
constexpr uint64_t kWriteback = uint64_t{8} << 20;

}  // namespace

OutputFile::OutputFile(std::filesystem::path path)
    : path_(std::move(path)),
      fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  OSLO_CHECK_AS(file, fd_ >= 0, "cannot create ", path_.string(), ": ", std::strerror(errno));
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

void OutputFile::write(const void* data, uint64_t bytes) {
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::write(fd_, from, std::min(bytes, kPiece));
    if (done < 0 && errno == EINTR) {
      continue;
    }
    OSLO_CHECK_AS(file, done > 0, "cannot write ", path_.string(), " after ", written_,
                  " bytes: ", std::strerror(done < 0 ? errno : ENOSPC));
    hash_.update(from, static_cast<uint64_t>(done));
    from += done;
    bytes -= static_cast<uint64_t>(done);
    written_ += static_cast<uint64_t>(done);
    begin_writeback();
  }
}

void OutputFile::begin_writeback() {
  if (written_ - on_its_way_ < kWriteback) return;
  // A hint: what cannot take it (a pipe) goes without.
  ::sync_file_range(fd_, static_cast<off_t>(on_its_way_),
                    static_cast<off_t>(written_ - on_its_way_), SYNC_FILE_RANGE_WRITE);
  on_its_way_ = written_;
}

void OutputFile::close() {
  const int fd = std::exchange(fd_, -1);
  OSLO_CHECK_AS(file, fd < 0 || ::close(fd) == 0 || errno == EINTR, "cannot finish writing ",
                path_.string(), ": ", std::strerror(errno));
}

InputFile::InputFile(std::filesystem::path path) : InputFile(std::move(path), AT_FDCWD) {}

InputFile::InputFile(std::filesystem::path path, int folder) : path_(std::move(path)) {
  OSLO_CHECK_AS(file, path_.native().find('\0') == std::string::npos, "cannot open ",
                printable_path(path_), ": no file has a NUL byte in its name");
  const std::filesystem::path name = folder == AT_FDCWD ? path_ : path_.filename();
  const int fd = ::openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  OSLO_CHECK_AS(file, fd >= 0, "cannot open ", printable_path(path_), ": ", std::strerror(errno));
  fd_ = std::shared_ptr<const int>(new int(fd), [](const int* open) {
    ::close(*open);
    delete open;
  });
  struct stat status = {};
  OSLO_CHECK_AS(file, ::fstat(fd, &status) == 0 && S_ISREG(status.st_mode), printable_path(path_),
                " is not a regular file; a checkpoint file was expected");
  size_ = static_cast<uint64_t>(status.st_size);
  written_ = status.st_mtim;
}

bool InputFile::is_as_opened() const {
  struct stat own = {};
  return ::fstat(*fd_, &own) == 0 && static_cast<uint64_t>(own.st_size) == size_ &&
         own.st_mtim.tv_sec == written_.tv_sec && own.st_mtim.tv_nsec == written_.tv_nsec;
}

bool InputFile::in_place(int folder) const {
  struct stat own = {}, named = {};
  return ::fstat(*fd_, &own) == 0 && ::fstatat(folder, path_.filename().c_str(), &named, 0) == 0 &&
         own.st_dev == named.st_dev && own.st_ino == named.st_ino && is_as_opened();
}

void InputFile::read(void* into, uint64_t bytes, uint64_t offset) const {
  char* to = static_cast<char*>(into);
  while (bytes > 0) {
    const ssize_t done =
        ::pread(*fd_, to, std::min(bytes, kLargestTransfer), static_cast<off_t>(offset));
    if (done < 0 && errno == EINTR) {
      continue;
    }
    OSLO_CHECK_AS(file, done >= 0, "cannot read ", path_.string(), " at byte ", offset, ": ",
                  std::strerror(errno));
    OSLO_CHECK_AS(file, done > 0, path_.string(), " ends at byte ", offset, ", ", bytes,
                  " bytes too early: the file is cut; copy or save it again");
    to += done;
    bytes -= static_cast<uint64_t>(done);
    offset += static_cast<uint64_t>(done);
  }
}

std::string read_file(const InputFile& file, uint64_t most) {
  OSLO_CHECK_AS(file, file.size() <= most, printable_path(file.path()), " has ", file.size(),
                " bytes, and at most ", most, " are read: it is damaged or something else");
  std::string text(file.size(), '\0');
  file.read(text.data(), text.size(), 0);
  return text;
}

void sync_file(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  OSLO_CHECK_AS(file, fd >= 0, "cannot open ", path.string(),
                " to sync it: ", std::strerror(errno));
  int error = 0;
  while (::fsync(fd) != 0) {
    if (errno != EINTR) {
      error = errno;
      break;
    }
  }
  ::close(fd);
  // Some file systems cannot sync a folder and say so with EINVAL; its entries are then as safe as
  // they get.
  OSLO_CHECK_AS(file, error == 0 || (error == EINVAL && std::filesystem::is_directory(path)),
                "cannot sync ", path.string(), ": ", std::strerror(error));
}

}  // namespace oslo
