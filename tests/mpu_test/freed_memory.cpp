// Each case is a process of its own, forked: malloc's settings are of the whole process.
#include "mpu/launch/freed_memory.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>

#include "mpu/world/local_device.h"

namespace oslo {
namespace {

constexpr int64_t kBlock = int64_t{100} << 20;

/// Bytes of a freed block that stay resident.
int64_t kept_of_a_block() {
  const int64_t before = memory_held(c10::kCPU);
  char* const block = static_cast<char*>(std::malloc(kBlock));
  for (int64_t at = 0; at < kBlock; at += 4096) static_cast<volatile char*>(block)[at] = 1;
  std::free(block);
  return memory_held(c10::kCPU) - before;
}

/// The exit code of a child that does `what`.
int child(const std::function<int()>& what) {
  const pid_t pid = fork();
  if (pid == 0) _exit(what());
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class FreedMemory : public ::testing::Test {
 protected:
  void SetUp() override {
#if !defined(__GLIBC__) || defined(__SANITIZE_ADDRESS__)
    GTEST_SKIP() << "malloc is not glibc's";
#endif
    for (const char* name : {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_",
                             "GLIBC_TUNABLES", "LD_PRELOAD"}) {
      if (std::getenv(name) != nullptr) GTEST_SKIP() << name << " is set";
    }
  }
};

TEST_F(FreedMemory, StaysWhereItIsAskedFor) {
  EXPECT_EQ(child([] { return kept_of_a_block() < kBlock / 10 ? 0 : 1; }), 0);
  EXPECT_EQ(child([] {
              if (!keep_freed_memory()) return 2;
              return kept_of_a_block() > kBlock - kBlock / 10 ? 0 : 1;
            }),
            0);
}

TEST_F(FreedMemory, IsTheUsersWhereTheEnvironmentSaysSo) {
  for (const char* entry : {"MALLOC_MMAP_THRESHOLD_=65536", "MALLOC_TRIM_THRESHOLD_=65536",
                            "MALLOC_TOP_PAD_=0", "GLIBC_TUNABLES=glibc.malloc.mmap_max=9"}) {
    SCOPED_TRACE(entry);
    EXPECT_EQ(child([&] {
                putenv(const_cast<char*>(entry));
                if (keep_freed_memory()) return 2;
                return kept_of_a_block() < kBlock / 10 ? 0 : 1;
              }),
              0);
  }
  EXPECT_EQ(child([] {  // of other things than malloc
              setenv("GLIBC_TUNABLES", "glibc.cpu.hwcaps=-AVX512F", 1);
              return keep_freed_memory() ? 0 : 1;
            }),
            0);
}

}  // namespace
}  // namespace oslo
