#include "mpu/launch/freed_memory.h"

#include "mpu/launch/malloc_settings.h"

namespace oslo {

bool keep_freed_memory() {
  if (environment_sets_malloc()) return false;
#ifdef __GLIBC__
  constexpr int kNever = -1;  // 4 GiB is no int
  return set_mmap_threshold() > 0 && mallopt(M_TRIM_THRESHOLD, kNever) == 1 &&
         mallopt(M_TOP_PAD, static_cast<int>(MallocSettings::kTopPad)) == 1;
#else
  return false;
#endif
}

}  // namespace oslo
