// Memory that another rank offers is opened only where it is what this library offers.
#include "mpu/transport/shared_memory/segment/segment.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "tests/support/error_of.h"
#include "tests/support/files.h"
#include "tests/support/temporary_directory.h"

namespace oslo::shared_memory {
namespace {

using ::oslo::test::error_of;
using ::oslo::test::expect_contains;
using ::oslo::test::TemporaryDirectory;

constexpr size_t kBytes = 4096;

TEST(Segment, OfEitherKindIsOpenedByItsAddress) {
  for (const auto kind : {Segment::Kind::anonymous, Segment::Kind::named}) {
    const auto made = Segment::create(kind, kBytes);
    made->commit(0, kBytes);
    std::memcpy(made->data(), "oslo", 4);
    const auto opened = Segment::open(made->address(), kBytes, made->inode());
    EXPECT_EQ(std::memcmp(opened->data(), "oslo", 4), 0);
    EXPECT_THROW(Segment::open(made->address(), 2 * kBytes, made->inode()), Error);
    EXPECT_THROW(Segment::open(made->address(), kBytes, made->inode() + 1), Error);
  }
}

uint64_t inode_of(const std::filesystem::path& path) {
  struct stat status {};
  EXPECT_EQ(::stat(path.c_str(), &status), 0);
  return status.st_ino;
}

// What a store says decides which file of this user is mapped and written.
TEST(Segment, OtherFilesAreNotOpened) {
  const TemporaryDirectory folder;
  test::write_contents(folder / "file", std::string(kBytes, 'x'));
  const std::filesystem::path beside = folder / "file";
  for (const std::string& address :
       {beside.string(), "/dev/shm/../.." + beside.string(), std::string("/dev/shm/oslo-1"),
        std::string("/proc/self/mem"), std::string("/proc/1/fd/../environ"), std::string()}) {
    expect_contains(error_of([&] { Segment::open(address, kBytes, inode_of(beside)); }),
                    {"'" + address + "'", "no address of shared memory"});
  }
}

// By a descriptor anything may hide behind a fitting address. Opening a pipe would wait.
TEST(Segment, WhatIsNoMemoryIsNotOpened) {
  const TemporaryDirectory folder;
  const std::filesystem::path pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int held = ::open(pipe.c_str(), O_PATH | O_CLOEXEC);
  ASSERT_GE(held, 0);
  const std::string address = c10::str("/proc/", ::getpid(), "/fd/", held);
  expect_contains(error_of([&] { Segment::open(address, 0, inode_of(pipe)); }),
                  {address, "is not the shared memory"});
  ::close(held);
}

}  // namespace
}  // namespace oslo::shared_memory
