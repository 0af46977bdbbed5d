#include "mpu/transport/process_group_nccl.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace oslo {

void add_nccl_backend(CountedProcessGroup& group, const Rendezvous& rendezvous,
                      const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  const auto make = [timeout = rendezvous.timeout, rank, size](const auto& over) {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    options->timeout = timeout;
    return c10::make_intrusive<c10d::ProcessGroupNCCL>(over, rank, size, options);
  };
  group.setBackend(c10::kCUDA, c10d::ProcessGroup::BackendType::NCCL, make(store));
  group.set_downward_messages([make, store] {
    return make(
        c10::intrusive_ptr<c10d::Store>(c10::make_intrusive<c10d::PrefixStore>("downward", store)));
  });
}

}  // namespace oslo
