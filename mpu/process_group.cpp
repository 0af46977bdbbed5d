#include "mpu/process_group.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "mpu/fake_backend.h"
#include "mpu/process_group_gloo.h"
#ifdef OSLO_CUDA
#include <ATen/Context.h>

#include "mpu/process_group_nccl.h"
#endif

namespace oslo {
namespace {

void add_fake_backend(c10d::ProcessGroup& group, int rank, int size) {
  auto backend = c10::make_intrusive<FakeBackend>(rank, size);
  group.setBackend(c10::kCPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  group.setBackend(c10::kCUDA, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  group.setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
}

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(Rendezvous& rendezvous,
                                                          const std::string& name, int rank,
                                                          int size) {
  auto store = c10::make_intrusive<c10d::PrefixStore>(name, rendezvous.store);
  auto group = c10::make_intrusive<CountedProcessGroup>(store, rank, size);
  group->setGroupName(name);
  if (rendezvous.transport == Transport::fake) {
    add_fake_backend(*group, rank, size);
    return group;
  }
  add_gloo_backend(*group, rendezvous, store, rank, size);
#ifdef OSLO_CUDA
  if (at::hasCUDA()) add_nccl_backend(*group, rendezvous, store, rank, size);
#endif
  return group;
}

}  // namespace oslo
