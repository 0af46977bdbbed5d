#include "mpu/transport/mover.h"

#include "mpu/transport/hierarchical_backend.h"
#include "mpu/transport/shared_memory/backend.h"

namespace oslo {

Mover mover_of(const c10d::Backend& backend) {
  const std::string name = backend.getBackendName();
  if (name == "fake") return Mover::nothing;
  if (name == "shm") return Mover::shared_memory;
  if (name == "gloo") return Mover::gloo;
  if (name == "hierarchical") return Mover::two_levels;
  return Mover::nccl;
}

int64_t all_reduce_brings(const c10d::Backend& backend, Mover mover, int64_t bytes) {
  if (mover == Mover::shared_memory) {
    return static_cast<const SharedMemoryBackend&>(backend).all_reduce_brings(bytes);
  }
  if (mover == Mover::two_levels) {
    return static_cast<const HierarchicalBackend&>(backend).all_reduce_brings(bytes);
  }
  return mover == Mover::nothing ? 0 : 2 * (backend.getSize() - 1) * bytes / backend.getSize();
}

}  // namespace oslo
