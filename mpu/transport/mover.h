#pragma once

#include <cstdint>
#include <torch/csrc/distributed/c10d/Backend.hpp>

namespace oslo {

/// What carries a group's data, as far as its collectives differ by that.
enum class Mover : int {
  nothing,        ///< fake groups
  shared_memory,  ///< takes parts of any sizes
  gloo,           ///< has no reduce-scatter, and gathers parts of one size
  two_levels,     ///< shared memory and Gloo: HierarchicalBackend
  nccl,           ///< parts of one size; results are there when the stream is
  staged,         ///< as nccl, by way of the host's memory: StagedBackend
};

/// By the backend's name; what is not known is used as NCCL is: by one tensor for all parts.
Mover mover_of(const c10d::Backend& backend);

/// How many bytes an all-reduce of `bytes` brings to this rank over `backend`. Gloo's and NCCL's
/// rings bring 2(n-1)/n of them; the exact algorithm of shared memory is ours.
int64_t all_reduce_brings(const c10d::Backend& backend, Mover mover, int64_t bytes);

}  // namespace oslo
