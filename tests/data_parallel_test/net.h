#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>

#include "mpu/grid/mpu.h"
#include "parallelizers/data/distributed_data_parallel.h"
#include "tests/support/seeded.h"

namespace data_parallel_test {

using oslo::DDPOptions;
using oslo::DistributedDataParallel;
using oslo::MPU;
using oslo::World;
using torch::Tensor;

struct NetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return out->forward(torch::tanh(in->forward(x))); }
  torch::nn::Linear in{register_module("in", torch::nn::Linear(6, 10))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(10, 3))};
};
TORCH_MODULE(Net);

template <typename M, typename... Args>
M seeded(uint64_t seed, Args... args) {
  return oslo::test::make_seeded(seed, [&] {
    M module(args...);
    module->to(torch::kDouble);
    return module;
  });
}

inline Tensor random(torch::IntArrayRef sizes, uint64_t seed) {
  return torch::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed), torch::kDouble);
}

inline void expect_close(const Tensor& a, const Tensor& b, const std::string& what) {
  EXPECT_TRUE(torch::allclose(a, b, 1e-9, 1e-10)) << what << "\n" << a << "\n" << b;
}

}  // namespace data_parallel_test
