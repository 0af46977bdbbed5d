#include "mpu/transport/process_group.h"

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "mpu/base/environment.h"
#include "mpu/base/error.h"
#include "mpu/base/time_limit.h"
#include "mpu/transport/backends/cuda_support.h"
#include "mpu/transport/backends/fake_backend.h"
#include "mpu/transport/backends/hierarchical_backend.h"
#include "mpu/transport/backends/process_group_gloo.h"
#include "mpu/transport/backends/staged_backend.h"
#include "mpu/transport/counted_process_group.h"
#include "mpu/transport/group_members.h"
#include "mpu/transport/presence/decision.h"
#include "mpu/transport/presence/host_identity.h"
#include "mpu/transport/presence/pending.h"
#include "mpu/transport/presence/presence.h"
#include "mpu/transport/presence/watched_store.h"
#include "mpu/transport/shared_memory/backend.h"

namespace oslo {
namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// The GPU that is current in this thread, under a name of its own; empty where there is none.
std::string current_device() {
  const CudaSupport* support = cuda_support();
  if (support == nullptr || !at::hasCUDA()) return "";
  try {
    return support->device_identity(c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice().index());
  } catch (const c10::Error&) {
    // A process that was forked from one that had used CUDA: it cannot, and may want the CPU only.
    return "";
  }
}

/// Throws on every member alike.
MembersMet meet(const Rendezvous& rendezvous, c10d::Store& store, const std::string& name, int rank,
                const std::vector<int>& ranks, Transport wanted) {
  const auto size = static_cast<int>(ranks.size());
  const std::string host =
      rendezvous.host.empty() ? shared_memory::host_identity() : rendezvous.host;
  const GroupMember own{wanted, host, current_device()};
  if (size == 1) return what_was_met(name, {own}, ranks);
  const Deciders deciders{store,
                          rank,
                          size,
                          rendezvous.timeout,
                          c10::str("group ", name, ": rank ", ranks[rank]),
                          ranks,
                          rendezvous.presence.get()};
  const auto decide = [&](const std::vector<std::string>& texts) {
    std::vector<GroupMember> members;
    for (const auto& text : texts) members.push_back(GroupMember::from_text(text));
    return what_was_met(name, members, ranks).to_text();
  };
  return MembersMet::from_text(
      decide_together(deciders, 0, "making the group", own.to_text(), decide), size);
}

/// `ranks`: in the world, as everywhere here.
BackendPtr make_shared(const Rendezvous& rendezvous, const StorePtr& store, const std::string& name,
                       int rank, const std::vector<int>& ranks) {
  const auto size = static_cast<int>(ranks.size());
  auto options = c10::make_intrusive<SharedMemoryBackend::Options>(rendezvous.timeout);
  options->host = rendezvous.host;
  options->group_name = name;
  options->global_ranks_in_group.assign(ranks.begin(), ranks.end());
  if (size == 1) options->chunk_bytes = options->ring_bytes = 4096;  // shared with nobody
  return make_shared_memory_backend(store, rank, size, std::move(options));
}

/// Gloo's own errors name nobody.
BackendPtr make_gloo(Rendezvous& rendezvous, const StorePtr& store, const std::string& name,
                     int rank, const std::vector<int>& ranks) {
  try {
    return make_gloo_backend(rendezvous, store, rank, static_cast<int>(ranks.size()));
  } catch (const std::exception& error) {
    const OperationLabel label{
        c10::str(" of group ", name, " (ranks ", ranks, ") failed on rank ", ranks[rank],
                 " of the world"),
        c10::str("; another rank has ended, is late (the time limit is ",
                 to_text(rendezvous.timeout), ", see OSLO_TIMEOUT), or did something else: "),
        rendezvous.presence};
    fail_operation("connecting the ranks", label, error);
  }
}

/// Shared memory inside a host, Gloo between the hosts' first ranks.
BackendPtr make_hierarchical(Rendezvous& rendezvous, const StorePtr& store, const std::string& name,
                             int rank, const std::vector<int>& ranks, std::vector<int> host_of) {
  const auto sub_store = [&](const std::string& level) {
    return StorePtr(c10::make_intrusive<c10d::PrefixStore>(level, store));
  };
  const int host = host_of[rank];
  int inside_rank = 0;
  std::vector<int> inside, leaders;
  for (size_t other = 0; other < ranks.size(); ++other) {
    if (host_of[other] == static_cast<int>(leaders.size())) leaders.push_back(ranks[other]);
    if (host_of[other] != host) continue;
    inside_rank += static_cast<int>(other) < rank;
    inside.push_back(ranks[other]);
  }
  HierarchicalBackend::Levels levels;
  levels.network = make_gloo(rendezvous, sub_store("network"), name, rank, ranks);
  levels.inside =
      make_shared(rendezvous, sub_store(c10::str("host", host)), name, inside_rank, inside);
  if (inside_rank == 0) {
    levels.leaders = make_gloo(rendezvous, sub_store("leaders"), name, host, leaders);
  }
  levels.host_of = std::move(host_of);
  return c10::make_intrusive<HierarchicalBackend>(rank, static_cast<int>(ranks.size()),
                                                  std::move(levels));
}

BackendPtr make_cpu_backend(Rendezvous& rendezvous, const StorePtr& store, const std::string& name,
                            int rank, const std::vector<int>& ranks, Transport wanted,
                            const std::vector<int>& host_of) {
  const auto size = static_cast<int>(host_of.size());
  const int hosts = *std::max_element(host_of.begin(), host_of.end()) + 1;
  OSLO_CHECK(wanted != Transport::shared_memory || hosts == 1, "group ", name, ": its ", size,
             " ranks are on ", hosts,
             " hosts (or in containers that do not see each other), which share no memory; use the "
             "backend 'auto'");
  const bool all_apart = hosts == size && size > 1;
  if (wanted == Transport::gloo || all_apart) {
    return make_gloo(rendezvous, store, name, rank, ranks);
  }
  if (hosts > 1) return make_hierarchical(rendezvous, store, name, rank, ranks, host_of);
  try {
    return make_shared(rendezvous, store, name, rank, ranks);
  } catch (const Error& error) {
    // All ranks are told the same; most machines without shared memory still have a network.
    if (wanted == Transport::shared_memory) throw;
    TORCH_WARN("group ", name, " goes over Gloo, since memory cannot be shared: ", error.what());
    return make_gloo(rendezvous, store, name, rank, ranks);
  }
}

void set_nccl(CountedProcessGroup& group, const StorePtr& store, const std::string& name) {
  const auto make = [support = cuda_support(),
                     members =
                         CommunicatorGroup{name, group.ranks(), group.getRank(), group.timeout()}](
                        const StorePtr& over) { return support->make_nccl(over, members); };
  group.setBackend(c10::kCUDA, c10d::ProcessGroup::BackendType::NCCL, make(store));
  group.set_device_messages(std::make_unique<DeviceMessages>(store, group.getRank(),
                                                             group.timeout(), make, group.ranks()));
}

Transport from_environment() {
  const std::optional<std::string> name = read_variable(Variable::backend);
  if (!name) return Transport::automatic;
  try {
    return parse_transport(*name);
  } catch (const Error& error) {
    fail_as(ErrorKind::config, row_of(Variable::backend).name, ": ", error.what());
  }
}

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(Rendezvous& rendezvous,
                                                          const std::string& name, int rank,
                                                          std::vector<int> ranks,
                                                          Transport wanted) {
  const int size = static_cast<int>(ranks.size());
  const auto store =
      c10::make_intrusive<WatchedStore>(name, rendezvous.store, rendezvous.presence, ranks);
  auto group = c10::make_intrusive<CountedProcessGroup>(store, rank, ranks, rendezvous.timeout,
                                                        rendezvous.presence);
  if (rendezvous.transport != Transport::automatic) wanted = rendezvous.transport;
  if (wanted == Transport::automatic) wanted = from_environment();
  const auto set = [&](c10::DeviceType device, c10d::ProcessGroup::BackendType type,
                       const BackendPtr& backend) {
    group->setBackend(device, type, backend);
    group->setDefaultBackend(type);
  };
  using Type = c10d::ProcessGroup::BackendType;
  if (wanted == Transport::fake) {
    const BackendPtr fake = c10::make_intrusive<FakeBackend>(rank, size);
    set(c10::kCPU, Type::CUSTOM, fake);
    set(c10::kCUDA, Type::CUSTOM, fake);
    group->setGroupName(name);
    return group;
  }
  const MembersMet met = meet(rendezvous, *store, name, rank, ranks, wanted);
  const BackendPtr cpu =
      make_cpu_backend(rendezvous, store, name, rank, ranks, wanted, met.host_of);
  set(c10::kCPU, cpu->getBackendName() == "gloo" ? Type::GLOO : Type::CUSTOM, cpu);
  if (met.device == DeviceCarrier::nccl) set_nccl(*group, store, name);
  if (met.device == DeviceCarrier::staged) {
    // A transport of its own: its operations are ordered among themselves only.
    const auto apart = c10::make_intrusive<c10d::PrefixStore>("staged", store);
    // In NCCL's place: under the type of the CPU's backend LibTorch would take that one.
    group->setBackend(c10::kCUDA, Type::NCCL,
                      c10::make_intrusive<StagedBackend>(
                          rank, size,
                          make_cpu_backend(rendezvous, apart, name + "/staged", rank, ranks,
                                           Transport::automatic, met.host_of)));
  }
  group->setGroupName(name);  // which LibTorch keeps in the backends
  return group;
}

}  // namespace oslo
