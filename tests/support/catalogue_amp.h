#pragma once

#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>
#include <torch/types.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "tests/support/bf16.h"
#include "tests/support/catalogue_entry.h"
#include "tests/support/under_autocast.h"

// "amp" in the config beside a guard of autocast around forward and loss of the plain model.
namespace catalogue {

/// Whether one device can run it in fp16: a mask of -1e9 has no number there.
inline bool runs_in_fp16(const Entry& entry) {
  try {
    const auto model = make_model(entry, torch::kFloat32);
    const Batch batch = make_batch(entry, 0, torch::kFloat32);
    const oslo::test::UnderAutocast guard(torch::kHalf);
    entry.forward(*model, batch.inputs);
  } catch (const std::exception&) {  // an overflow is no c10::Error
    return false;
  }
  return true;
}

/// The entries take turns, so that each comes with one type.
inline torch::Dtype amp_type(const Entry& entry) {
  if (entry.name.size() % 2 == 0) return torch::kBFloat16;
  return runs_in_fp16(entry) ? torch::kHalf : torch::kBFloat16;
}

inline std::string amp_config(torch::Dtype type, int tensor) {
  return c10::str(R"({"amp": {"enabled": true, "dtype": ")",
                  type == torch::kHalf ? "float16" : "bfloat16",
                  R"("}, "model_parallelism": {"tensor_parallel_size": )", tensor, "}}");
}

/// Whether an operator casts a weight several times within itself, as recurrent layers do at each
/// time. LibTorch's cache has one cast, whose gradients are added up in the narrow type; here each
/// has its own, and they meet in fp32.
inline bool casts_within(const Entry& entry) {
  return entry.name.starts_with("lstm") || entry.name.starts_with("gru") ||
         entry.name == "own_functions";
}

struct Step {
  Tensors outputs;
  torch::Tensor loss;
};

/// Forward, loss and backward. `guarded`: under autocast of that type by hand.
inline Step amp_step(const Entry& entry, torch::nn::Module& model, const Batch& batch,
                     std::optional<torch::Dtype> guarded) {
  Step step;
  {
    std::optional<oslo::test::UnderAutocast> guard;
    if (guarded) guard.emplace(*guarded);
    step.outputs = entry.forward(model, batch.inputs);
    step.loss = entry.loss(step.outputs, batch);
  }
  step.loss.backward();
  return step;
}

/// Calls `compare(name, tensor, tensor of plain)` for outputs, loss, gradients and weights.
using Compare = std::function<void(const std::string&, const torch::Tensor&, const torch::Tensor&)>;
inline void compare_steps(const Step& own, const Step& plain, const torch::nn::Module& model,
                          const torch::nn::Module& reference, const Compare& compare) {
  ASSERT_EQ(own.outputs.size(), plain.outputs.size());
  for (size_t i = 0; i < own.outputs.size(); ++i) {
    compare("output " + std::to_string(i), own.outputs[i], plain.outputs[i]);
  }
  compare("loss", own.loss, plain.loss);
  const auto parameters = model.named_parameters();
  for (const auto& item : reference.named_parameters()) {
    const torch::Tensor& gradient = parameters[item.key()].grad();
    ASSERT_EQ(gradient.defined(), item.value().grad().defined()) << item.key();
    if (gradient.defined()) compare("gradient of " + item.key(), gradient, item.value().grad());
  }
}

/// Five steps on one rank, and evaluation: the same bits.
inline void amp_on_one_rank(const Entry& entry) {
  if (!entry.runs_in_bf16) return;
  const torch::Dtype type = amp_type(entry);
  oslo::run_as_threads(1, [&](const oslo::World& world) {
    at::set_num_threads(1);
    const auto same = [&](const std::string& what, const torch::Tensor& own,
                          const torch::Tensor& plain) {
      EXPECT_EQ(own.scalar_type(), plain.scalar_type()) << what;
      const torch::Tensor whole = oslo::full_tensor(own).detach();
      if (casts_within(entry)) {
        const torch::Tensor wide = plain.detach().to(torch::kFloat);
        EXPECT_LE((whole.to(torch::kFloat) - wide).norm().item<float>(),
                  wide.norm().item<float>() / 32 + 1e-6)
            << what;
        return;
      }
      EXPECT_TRUE(whole.equal(plain.detach()))
          << what << " differs by "
          << (whole.to(torch::kFloat) - plain.detach().to(torch::kFloat)).abs().max().item<float>();
    };
    const auto plain = make_model(entry, torch::kFloat32);
    const auto model = make_model(entry, torch::kFloat32);
    oslo::InitializeOptions how;
    how.world = world;
    oslo::initialize(model, oslo::Config::parse(amp_config(type, 1)), how);
    const auto optimizer = make_optimizer(entry, model->parameters());
    const auto plain_optimizer = make_optimizer(entry, plain->parameters());
    for (int number = 0; number < 5; ++number) {
      const Batch batch = make_batch(entry, number, torch::kFloat32);
      optimizer->zero_grad();
      plain_optimizer->zero_grad();
      const std::unique_lock<std::mutex> draws(oslo::test::random_mutex());
      at::manual_seed(3);
      const Step expected = amp_step(entry, *plain, batch, type);
      at::manual_seed(3);
      const Step step = amp_step(entry, *model, batch, std::nullopt);
      compare_steps(step, expected, *model, *plain, same);
      if (testing::Test::HasFailure()) return;
      optimizer->step();
      plain_optimizer->step();
    }
    const auto parameters = model->named_parameters();
    for (const auto& item : plain->named_parameters()) {
      same("weight " + item.key(), parameters[item.key()].detach(), item.value().detach());
    }
    const auto buffers = model->named_buffers();
    for (const auto& item : plain->named_buffers()) {
      same("buffer " + item.key(), buffers[item.key()], item.value());
    }
    const torch::NoGradGuard no_grad;
    const Batch batch = make_batch(entry, 9, torch::kFloat32);
    model->eval();
    plain->eval();
    const Tensors outputs = entry.forward(*model, batch.inputs);
    const oslo::test::UnderAutocast guard(type);
    const Tensors expected = entry.forward(*plain, batch.inputs);
    for (size_t i = 0; i < outputs.size(); ++i) same("evaluation", outputs[i], expected[i]);
  });
}

}  // namespace catalogue
