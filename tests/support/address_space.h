#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

namespace oslo::test {

/// The addresses that this process has now, in bytes.
inline int64_t address_space() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

/// The limit's soft half, which may be raised again.
inline void limit_address_space(rlim_t bytes) {
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &limit), 0);
  limit.rlim_cur = bytes;
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
}

}  // namespace oslo::test

/// The first line of a test that limits it.
#ifdef __SANITIZE_ADDRESS__
#define OSLO_LIMITS_ADDRESS_SPACE() \
  GTEST_SKIP() << "AddressSanitizer's own memory is terabytes of addresses"
#else
#define OSLO_LIMITS_ADDRESS_SPACE() static_assert(true)
#endif
