#include "mpu/transport/process_group.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "mpu/decision.h"
#include "mpu/error.h"
#include "mpu/transport/counted_process_group.h"
#include "mpu/transport/fake_backend.h"
#include "mpu/transport/hierarchical_backend.h"
#include "mpu/transport/process_group_gloo.h"
#include "mpu/transport/shared_memory/backend.h"
#include "mpu/transport/shared_memory/host_identity.h"
#ifdef OSLO_CUDA
#include <ATen/Context.h>

#include "mpu/transport/process_group_nccl.h"
#endif

namespace oslo {
namespace {

using BackendPtr = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

/// The members' hosts, by rank, as numbers from 0 in order of first appearance, as text. `texts`
/// are what each wants and where it is. Throws when they want different transports.
std::string hosts_in_order(const std::string& name, const std::vector<std::string>& texts) {
  std::vector<std::string> hosts;
  std::string numbers;
  const std::string first = texts[0].substr(0, texts[0].find(' '));
  for (size_t member = 0; member < texts.size(); ++member) {
    const size_t space = texts[member].find(' ');
    const std::string wanted = texts[member].substr(0, space);
    OSLO_CHECK(wanted == first, "group ", name, ": rank 0 has the backend '", first, "' and rank ",
               member, " '", wanted, "'; start all ranks with the same OSLO_BACKEND and config");
    const auto found = std::find(hosts.begin(), hosts.end(), texts[member].substr(space + 1));
    numbers += c10::str(found - hosts.begin(), " ");
    if (found == hosts.end()) hosts.push_back(texts[member].substr(space + 1));
  }
  return numbers;
}

/// The members' hosts, by rank, as those numbers. Throws on every member alike.
std::vector<int> meet(const Rendezvous& rendezvous, c10d::Store& store, const std::string& name,
                      int rank, int size, Transport wanted) {
  if (size == 1) return {0};
  const std::string host =
      rendezvous.host.empty() ? shared_memory::host_identity() : rendezvous.host;
  const Deciders members{store, rank, size, rendezvous.timeout,
                         c10::str("group ", name, ": rank ", rank)};
  std::istringstream numbers(
      decide_together(members, 0, "making the group", to_string(wanted) + " " + host,
                      [&](const auto& texts) { return hosts_in_order(name, texts); }));
  std::vector<int> host_of(size);
  for (int& number : host_of) numbers >> number;
  return host_of;
}

BackendPtr make_shared(const Rendezvous& rendezvous, const StorePtr& store, const std::string& name,
                       int rank, int size) {
  auto options = c10::make_intrusive<SharedMemoryBackend::Options>(rendezvous.timeout);
  options->host = rendezvous.host;
  options->group_name = name;
  if (size == 1) options->chunk_bytes = options->ring_bytes = 4096;  // shared with nobody
  return make_shared_memory_backend(store, rank, size, std::move(options));
}

/// Shared memory inside a host, Gloo between the hosts' first ranks.
BackendPtr make_hierarchical(Rendezvous& rendezvous, const StorePtr& store, const std::string& name,
                             int rank, int size, std::vector<int> host_of) {
  const auto sub_store = [&](const std::string& level) {
    return StorePtr(c10::make_intrusive<c10d::PrefixStore>(level, store));
  };
  const int host = host_of[rank];
  int inside_rank = 0, inside_size = 0;
  for (int other = 0; other < size; ++other) {
    if (host_of[other] != host) continue;
    inside_rank += other < rank;
    ++inside_size;
  }
  HierarchicalBackend::Levels levels;
  levels.network = make_gloo_backend(rendezvous, sub_store("network"), rank, size);
  levels.inside =
      make_shared(rendezvous, sub_store(c10::str("host", host)), name, inside_rank, inside_size);
  if (inside_rank == 0) {
    const int hosts = *std::max_element(host_of.begin(), host_of.end()) + 1;
    levels.leaders = make_gloo_backend(rendezvous, sub_store("leaders"), host, hosts);
  }
  levels.host_of = std::move(host_of);
  return c10::make_intrusive<HierarchicalBackend>(rank, size, std::move(levels));
}

BackendPtr make_cpu_backend(Rendezvous& rendezvous, const StorePtr& store, const std::string& name,
                            int rank, int size, Transport wanted) {
  const std::vector<int> host_of = meet(rendezvous, *store, name, rank, size, wanted);
  const int hosts = *std::max_element(host_of.begin(), host_of.end()) + 1;
  OSLO_CHECK(wanted != Transport::shared_memory || hosts == 1, "group ", name, ": its ", size,
             " ranks are on ", hosts,
             " hosts (or in containers that do not see each other), which share no memory; use the "
             "backend 'auto'");
  const bool all_apart = hosts == size && size > 1;
  if (wanted == Transport::gloo || all_apart) {
    return make_gloo_backend(rendezvous, store, rank, size);
  }
  if (hosts > 1) return make_hierarchical(rendezvous, store, name, rank, size, host_of);
  try {
    return make_shared(rendezvous, store, name, rank, size);
  } catch (const Error& error) {
    // All ranks are told the same; most machines without shared memory still have a network.
    if (wanted == Transport::shared_memory) throw;
    TORCH_WARN("group ", name, " goes over Gloo, since memory cannot be shared: ", error.what());
    return make_gloo_backend(rendezvous, store, rank, size);
  }
}

Transport from_environment() {
  const char* name = std::getenv("OSLO_BACKEND");
  if (name == nullptr || *name == '\0') return Transport::automatic;
  try {
    return parse_transport(name);
  } catch (const Error& error) {
    fail("OSLO_BACKEND: ", error.what());
  }
}

}  // namespace

c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(Rendezvous& rendezvous,
                                                          const std::string& name, int rank,
                                                          std::vector<int> ranks,
                                                          Transport wanted) {
  const int size = static_cast<int>(ranks.size());
  auto store = c10::make_intrusive<c10d::PrefixStore>(name, rendezvous.store);
  auto group =
      c10::make_intrusive<CountedProcessGroup>(store, rank, std::move(ranks), rendezvous.timeout);
  group->setGroupName(name);
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
    return group;
  }
#ifndef OSLO_CUDA
  OSLO_CHECK(wanted != Transport::nccl,
             "backend 'nccl': this build has no NCCL; configure it with -DOSLO_CUDA=ON");
#endif
  const BackendPtr cpu = make_cpu_backend(rendezvous, store, name, rank, size, wanted);
  set(c10::kCPU, cpu->getBackendName() == "gloo" ? Type::GLOO : Type::CUSTOM, cpu);
#ifdef OSLO_CUDA
  OSLO_CHECK(wanted != Transport::nccl || at::hasCUDA(), "backend 'nccl': no CUDA device here");
  if (at::hasCUDA()) add_nccl_backend(*group, rendezvous, store, rank, size);
#endif
  return group;
}

}  // namespace oslo
