#pragma once

#include <sys/types.h>

#include "tools/oslo/base/file_descriptor.h"

namespace oslo::tool {

/// A small process that ends the ranks' process groups should this process die by a signal that
/// cannot be caught. The parent-death signal alone reaches only a rank's first process, not what a
/// wrapper script started.
class OrphanGuard {
 public:
  /// Call it before any rank is started. Throws `std::system_error`.
  OrphanGuard();
  ~OrphanGuard();
  OrphanGuard(const OrphanGuard&) = delete;
  OrphanGuard& operator=(const OrphanGuard&) = delete;

  /// Watches process group `group` from now on.
  void watch(pid_t group);

 private:
  FileDescriptor groups_;  // its closing is what the guard waits for
  pid_t guard_ = -1;
};

}  // namespace oslo::tool
