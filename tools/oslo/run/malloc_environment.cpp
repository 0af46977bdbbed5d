#include "tools/oslo/run/malloc_environment.h"

#include "mpu/launch/malloc_settings.h"

namespace oslo::tool {

std::vector<std::string> malloc_environment() {
  if (environment_sets_malloc()) return {};
  // Tried out on this process, which has no use for it, and harms none.
  const int64_t threshold = set_mmap_threshold();
  if (threshold == 0) return {};
  const auto entry = [](const std::string& name, int64_t bytes) {
    return name + "=" + std::to_string(bytes);
  };
  return {entry(MallocSettings::kMmapVariable, threshold),
          entry(MallocSettings::kTrimVariable, MallocSettings::kTrimThreshold),
          entry(MallocSettings::kPadVariable, MallocSettings::kTopPad)};
}

}  // namespace oslo::tool
