#include "mpu/transport/backends/flight_recorder.h"

#include <cstdlib>

namespace oslo {
namespace {

constexpr const char* kEntries = "TORCH_FR_BUFFER_SIZE";

/// While the library is loaded there is no thread yet that could read the environment meanwhile.
[[maybe_unused]] const bool kIsOff = ::setenv(kEntries, "0", /*overwrite=*/0) == 0;

}  // namespace

void switch_off_flight_recorder() {
  ::setenv(kEntries, "0", /*overwrite=*/1);
}

}  // namespace oslo
