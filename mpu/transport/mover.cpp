#include "mpu/transport/mover.h"

#include "mpu/transport/backends/hierarchical_backend.h"
#include "mpu/transport/backends/staged_backend.h"
#include "mpu/transport/shared_memory/backend.h"

namespace oslo {

Mover mover_of(const c10d::Backend& backend) {
  const std::string name = backend.getBackendName();
  if (name == "fake") return Mover::nothing;
  if (name == "shm") return Mover::shared_memory;
  if (name == "gloo") return Mover::gloo;
  if (name == "hierarchical") return Mover::two_levels;
  if (name == "staged") return Mover::staged;
  return Mover::nccl;
}

int64_t all_reduce_brings(const c10d::Backend& backend, Mover mover, int64_t bytes) {
  if (mover == Mover::shared_memory) {
    return static_cast<const SharedMemoryBackend&>(backend).all_reduce_brings(bytes);
  }
  if (mover == Mover::two_levels) {
    return static_cast<const HierarchicalBackend&>(backend).all_reduce_brings(bytes);
  }
  if (mover == Mover::staged) {
    const auto& staged = static_cast<const StagedBackend&>(backend);
    const auto of = [inner = staged.inner()](int64_t chunk) {
      return all_reduce_brings(*inner, mover_of(*inner), chunk);
    };
    const int64_t chunk = staged.chunk_bytes();
    return bytes / chunk * of(chunk) + of(bytes % chunk);
  }
  return mover == Mover::nothing ? 0 : 2 * (backend.getSize() - 1) * bytes / backend.getSize();
}

}  // namespace oslo
