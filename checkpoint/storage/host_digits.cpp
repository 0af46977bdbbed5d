#include "checkpoint/storage/host_digits.h"

#include "checkpoint/storage/hash.h"
#include "mpu/transport/presence/host_identity.h"

namespace oslo {

std::string host_digits() {
  constexpr size_t kDigits = 8;
  return sha256(shared_memory::host_identity()).substr(0, kDigits);
}

}  // namespace oslo
