#include "mpu/grid/random_streams.h"

#include <ATen/CPUGeneratorImpl.h>

namespace oslo {
namespace {

/// Neighbouring seeds give unrelated streams.
uint64_t splitmix64(uint64_t value) {
  value += 0x9e3779b97f4a7c15ULL;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ULL;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebULL;
  return value ^ (value >> 31);
}

}  // namespace

RandomStreams::RandomStreams(uint64_t seed, int data_rank, int tensor_rank, int pipeline_rank)
    : replicated_(at::detail::createCPUGenerator(splitmix64(seed + data_rank))),
      sharded_(at::detail::createCPUGenerator(
          splitmix64(splitmix64(splitmix64(seed + data_rank) + tensor_rank + 1) + pipeline_rank))) {
}

}  // namespace oslo
