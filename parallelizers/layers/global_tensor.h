#pragma once

#include <initializer_list>
#include <vector>

#include "mpu/world/world.h"
#include "parallelizers/placement/carrier/access.h"

namespace oslo {

/// Global tensors in the words of LiBai and OneFlow: one entry of `sbp` for each axis of the mesh.
///
///     const auto x = oslo::distribute(torch::rand({32, 1024}), mpu.mesh({"data", "tensor"}),
///                                     {oslo::sbp::split(0), oslo::sbp::broadcast});
///
/// Every rank has the same whole tensor and keeps its part (`distribute`; from parts of their own,
/// `from_local`), operators on it are those of one device on the whole, and so are its gradients.
/// `full_tensor` and `local_tensor` are `to_global(sbp=broadcast)` and `to_local()`.
namespace sbp {

/// Dimension `dim` is cut over the ranks of the axis, evenly as torch::tensor_split cuts.
inline Placement split(int64_t dim) {
  return Placement::shard(dim);
}

/// Every rank of the axis has all of it. `sbp::broadcast` and `sbp::broadcast()` are the same.
struct Broadcast {
  operator Placement() const {
    return Placement::replicate();
  }  // NOLINT(google-explicit-constructor)
  Placement operator()() const { return Placement::replicate(); }
};
inline constexpr Broadcast broadcast{};

}  // namespace sbp

/// The mesh of chosen ranks, OneFlow's `placement("cuda", ranks=[0, 1])`: an axis of these, or two
/// for rows of ranks, {{0, 1}, {2, 3}}. A tensor on it meets layers whose mesh has the same ranks.
/// Collective over them; throws on a rank that is not among them, for a rank that the world lacks
/// or that stands twice, and for rows of unequal length. Its ranks draw random numbers as one
/// device does.
MeshPtr placement(const World& world, const std::vector<int>& ranks);
MeshPtr placement(const World& world, const std::vector<std::vector<int>>& ranks);
inline MeshPtr placement(const World& world, std::initializer_list<int> ranks) {
  return placement(world, std::vector<int>(ranks));
}

}  // namespace oslo
