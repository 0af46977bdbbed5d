#include "mpu/transport/shared_memory/segment/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <regex>

#include "mpu/base/error.h"

namespace oslo::shared_memory {
namespace {

std::string random_name() {
  std::array<unsigned char, 16> bytes{};
  OSLO_CHECK(::getrandom(bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
             "no random numbers for the name of shared memory: ", std::strerror(errno));
  std::string name = "/oslo-";
  for (const unsigned char byte : bytes) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", byte);
    name += digits.data();
  }
  return name;
}

/// What `create` makes: addresses come over a store that anybody who reaches its port may write to.
bool is_address(const std::string& address) {
  static const std::regex form("/proc/[0-9]+/fd/[0-9]+|/dev/shm/oslo-[0-9a-f]{32}");
  return std::regex_match(address, form);
}

int make(Segment::Kind kind, const std::string& name) {
  if (kind == Segment::Kind::anonymous)
    return ::memfd_create("oslo", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  return ::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
}

}  // namespace

std::shared_ptr<Segment> Segment::create(Kind kind, size_t bytes) {
  const std::string name = kind == Kind::named ? random_name() : "";
  const int descriptor = make(kind, name);
  OSLO_CHECK(descriptor >= 0, "no shared memory can be made (",
             name.empty() ? "memfd_create" : "shm_open", "): ", std::strerror(errno));
  const std::string address =
      name.empty() ? c10::str("/proc/", ::getpid(), "/fd/", descriptor) : "/dev/shm" + name;
  // From here on the object closes what has been opened.
  std::shared_ptr<Segment> segment(new Segment(descriptor, bytes, address, name));
  // Nobody can take away what others have mapped. (Named memory knows no seals.)
  if (name.empty()) ::fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  return segment;
}

std::shared_ptr<Segment> Segment::open(const std::string& address, size_t bytes, uint64_t inode) {
  OSLO_CHECK(is_address(address), "'", address,
             "' is no address of shared memory (/proc/<process>/fd/<number>, or /dev/shm/oslo-*): "
             "what the ranks' store says is not what this library wrote there");
  // Whatever it may be by now: opening a pipe must not wait for somebody at its other end.
  const int descriptor = ::open(address.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  OSLO_CHECK(descriptor >= 0, "shared memory at ", address,
             " cannot be opened: ", std::strerror(errno));
  struct stat status {};
  const bool same = ::fstat(descriptor, &status) == 0 && S_ISREG(status.st_mode) &&
                    status.st_uid == ::geteuid() && status.st_ino == inode &&
                    static_cast<size_t>(status.st_size) == bytes;
  if (!same) {
    ::close(descriptor);
    fail(address, " is not the shared memory that was offered there");
  }
  return std::shared_ptr<Segment>(new Segment(descriptor, bytes, address, ""));
}

Segment::Segment(int descriptor, size_t bytes, std::string address, std::string name)
    : descriptor_(descriptor), bytes_(bytes), address_(std::move(address)), name_(std::move(name)) {
  struct stat status {};
  const bool sized = ::fstat(descriptor_, &status) == 0 &&
                     (static_cast<size_t>(status.st_size) == bytes ||
                      ::ftruncate(descriptor_, static_cast<off_t>(bytes)) == 0);
  void* data = MAP_FAILED;
  if (sized) data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (data == MAP_FAILED) {
    const int reason = errno;
    unlink();
    ::close(descriptor_);
    fail(bytes, " bytes of shared memory cannot be mapped: ", std::strerror(reason));
  }
  inode_ = status.st_ino;
  data_ = static_cast<std::byte*>(data);
}

Segment::~Segment() {
  unlink();
  ::munmap(data_, bytes_);
  ::close(descriptor_);
}

void Segment::commit(size_t offset, size_t bytes) const {
  int reason = EINTR;
  while (reason == EINTR) {
    reason = ::posix_fallocate(descriptor_, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  }
  OSLO_CHECK(reason == 0, bytes, " bytes of shared memory cannot be had",
             name_.empty() ? "" : " in /dev/shm", ": ", std::strerror(reason),
             "; free some memory, raise its limit, or choose smaller chunks");
}

void Segment::release(size_t offset, size_t bytes) const {
  // Where the kernel cannot, the memory stays: nobody relies on zeros.
  (void)::fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(offset), static_cast<off_t>(bytes));
}

void Segment::unlink() {
  if (!name_.empty()) ::shm_unlink(name_.c_str());
  name_.clear();
}

}  // namespace oslo::shared_memory
