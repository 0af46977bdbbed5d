#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>

namespace oslo {

/// The two random streams that model-parallel code needs (Megatron-LM's model-parallel RNG):
/// values that all tensor ranks hold draw from `replicated`, which is the same on the ranks of one
/// model and differs between data replicas; values that are cut draw from `sharded`, which differs
/// on every rank. Both follow from one seed. At tensor size 1 `sharded` is a stream of its own.
///
/// Operators on placed tensors draw from neither unless asked to (RandomMode in mpu/grid/mesh.h):
/// by default they reproduce what one device would draw.
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
