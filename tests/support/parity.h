#pragma once

#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/support/seeded.h"

// One model on one device against the same model in parallel: outputs, every gradient, weights
// after optimizer steps.
namespace parity {

using oslo::test::make_seeded;

struct Batch {
  torch::Tensor input, target;
};

/// fp64, so that only the order of sums differs: a wrong number is never small.
struct Tolerance {
  double relative = 1e-9, absolute = 1e-10;
};

inline void expect_close(const torch::Tensor& actual, const torch::Tensor& expected,
                         const std::string& what, Tolerance tolerance = {}) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(torch::allclose(actual, expected, tolerance.relative, tolerance.absolute))
      << what << " differs by " << (actual - expected).abs().max().item<double>();
}

/// AdamW divides by the root of a tiny second moment on its first steps (eps 1e-8): where a
/// gradient is nearly zero its last bits show, up to a fraction of a step (lr 1e-3).
constexpr Tolerance kTrained{1e-7, 1e-8};

/// Calls `compare(name, mine, reference)` for every parameter of the reference.
template <typename Compare>
void for_each_parameter(const torch::nn::Module& model, const torch::nn::Module& reference,
                        const Compare& compare) {
  const auto parameters = model.named_parameters();
  for (const auto& item : reference.named_parameters()) {
    const torch::Tensor* mine = parameters.find(item.key());
    ASSERT_NE(mine, nullptr) << item.key();
    compare(item.key(), *mine, item.value());
  }
}

/// Where one device gave no gradient, nobody may have one but zeros (data parallelism's).
inline void expect_gradients(const torch::nn::Module& model, const torch::nn::Module& reference,
                             Tolerance tolerance = {}) {
  for_each_parameter(
      model, reference,
      [&](const std::string& name, const torch::Tensor& mine, const torch::Tensor& in_reference) {
        const auto &gradient = mine.grad(), &expected = in_reference.grad();
        if (!gradient.defined() && !expected.defined()) return;
        // Thrown, so that ranks that have it do not wait for this one.
        if (!gradient.defined()) throw std::runtime_error(name + " has no gradient");
        const torch::Tensor whole = oslo::full_tensor(gradient);
        expect_close(whole, expected.defined() ? expected : torch::zeros_like(whole),
                     "gradient of " + name, tolerance);
      });
}

inline void expect_weights(const torch::nn::Module& model, const torch::nn::Module& reference,
                           Tolerance tolerance = kTrained) {
  for_each_parameter(
      model, reference,
      [&](const std::string& name, const torch::Tensor& mine, const torch::Tensor& in_reference) {
        expect_close(oslo::full_tensor(mine.detach()), in_reference.detach(), "weight " + name,
                     tolerance);
      });
}

struct Setup {
  int world = 2;
  std::string config;
  int steps = 3;
  double clip = 1.0;
  torch::Dtype dtype = torch::kFloat64;
  Tolerance tolerance;
  Tolerance weights = kTrained;
  bool example = false;  ///< hand initialize a forward to learn blocks and units from
  std::function<void(oslo::InitializeOptions&)> tweak;
};

/// What a rank can look at after the run.
struct Outcome {
  const oslo::ParallelModel& parallel;
  int rank;
};

/// Trains both models and compares. `make()` builds a model (any TORCH_MODULE holder),
/// `batch(step)` a global batch, `loss(output, target)` the loss of a part of it. `after` runs on
/// every rank.
template <typename Make, typename MakeBatch, typename Loss>
void expect_parity(const Setup& setup, const Make& make, const MakeBatch& batch, const Loss& loss,
                   const std::function<void(const Outcome&)>& after = {}) {
  oslo::run_as_threads(setup.world, [&](oslo::World world) {
    at::set_num_threads(1);
    auto reference = make_seeded(7, make);
    auto model = make_seeded(7, make);
    reference->to(setup.dtype);
    model->to(setup.dtype);
    std::vector<Batch> batches;
    for (int step = 0; step < setup.steps; ++step) {
      batches.push_back(make_seeded(100 + step, [&] { return batch(step); }));
    }
    const torch::optim::AdamWOptions adam(1e-3);
    torch::optim::AdamW optimizer(model->parameters(), adam);  // made before: sees the shards

    oslo::InitializeOptions how;
    how.world = world;
    if (setup.example) how.example_inputs = [&] { model->forward(batches.front().input); };
    if (setup.tweak) setup.tweak(how);
    auto parallel = oslo::initialize(model, oslo::Config::parse(setup.config), how);
    torch::optim::AdamW reference_optimizer(reference->parameters(), adam);
    const oslo::MPU& mpu = parallel.mpu();
    const int64_t replicas = mpu.get_data_parallel_world_size();
    oslo::DistributedDataParallel<decltype(model)> ddp(model, mpu.get_data_parallel_group());
    const auto own = [&](const torch::Tensor& whole) {
      return whole.tensor_split(replicas, 0)[mpu.get_data_parallel_rank()];
    };

    const auto train = [&](const Batch& step) {
      optimizer.zero_grad();
      reference_optimizer.zero_grad();
      const auto expected = reference->forward(step.input);
      loss(expected, step.target).backward();
      const auto output = ddp.forward(own(step.input));
      loss(output, own(step.target)).backward();

      expect_close(oslo::full_tensor(output), own(expected), "output", setup.tolerance);
      expect_gradients(*model, *reference, setup.tolerance);
      const double norm = torch::nn::utils::clip_grad_norm_(reference->parameters(), setup.clip);
      EXPECT_NEAR(parallel.clip_grad_norm_(setup.clip), norm, 1e-6 * norm);
      optimizer.step();
      reference_optimizer.step();
    };
    for (const Batch& step : batches) train(step);
    expect_weights(*model, *reference, setup.weights);
    if (after) after({parallel, world.rank()});
  });
}

inline std::string tensor_parallel(int size) {
  return R"({"model_parallelism": {"enable": true, "tensor_parallel_size": )" +
         std::to_string(size) + "}}";
}

}  // namespace parity
