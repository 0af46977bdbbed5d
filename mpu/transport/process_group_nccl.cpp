#include "mpu/transport/process_group_nccl.h"

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace oslo {

void add_nccl_backend(c10d::ProcessGroup& group, const Rendezvous& rendezvous,
                      const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = rendezvous.timeout;
  group.setBackend(c10::kCUDA, c10d::ProcessGroup::BackendType::NCCL,
                   c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options));
}

}  // namespace oslo
