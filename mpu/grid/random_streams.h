#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>

namespace oslo {

/// Where the random numbers of an operator on a cut value come from.
enum class RandomMode {
  /// What one device would draw: every rank draws for the whole value and keeps its part. Needs the
  /// same generator state on all ranks of the mesh (the same seed), and gives one device's masks.
  like_one_device,
  /// Every rank draws for its part only: cheaper, statistically as good, other numbers. Whole
  /// values still need equal generator states; cut ones use the sharded stream.
  per_rank,
};

/// How the ranks of a mesh draw for values that are cut over it.
struct RandomDraws {
  RandomMode mode = RandomMode::like_one_device;
  /// For RandomMode::per_rank; undefined: the default generator.
  at::Generator sharded = {};
};

/// The two random streams that model-parallel code needs (Megatron-LM's model-parallel RNG):
/// values that all tensor ranks hold draw from `replicated`, which is the same on the ranks of one
/// model and differs between data replicas; values that are cut draw from `sharded`, which differs
/// on every rank. Both follow from one seed. At tensor size 1 `sharded` is a stream of its own.
///
/// Operators on placed tensors draw from neither unless asked to (`RandomMode`): by default they
/// reproduce what one device would draw.
class RandomStreams {
 public:
  RandomStreams(uint64_t seed, int data_rank, int tensor_rank, int pipeline_rank);

  at::Generator& replicated() { return replicated_; }
  at::Generator& sharded() { return sharded_; }

 private:
  at::Generator replicated_;
  at::Generator sharded_;
};

}  // namespace oslo
