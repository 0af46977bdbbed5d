#pragma once

#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <string>
#include <utility>

#include "tests/models/gpt2.h"
#include "tests/support/initialized.h"
#include "tests/support/parity.h"
#include "tests/support/under_autocast.h"

namespace oslo::test {

inline std::string amp_config(torch::Dtype type, int tensor = 1, int pipeline = 1,
                              const std::string& more = "") {
  return c10::str(R"({"amp": {"enabled": true, "dtype": ")",
                  type == torch::kHalf ? "float16" : "bfloat16", R"("}, )", more,
                  R"("model_parallelism": {"tensor_parallel_size": )", tensor,
                  R"(, "pipeline_parallel_size": )", pipeline, "}}");
}

/// Words and the words that follow them.
inline std::pair<torch::Tensor, torch::Tensor> words(int step) {
  return make_seeded(100 + step, [] {
    const torch::Tensor text = torch::randint(64, {3, 8});
    return std::pair(text.slice(1, 0, 7), text.slice(1, 1, 8));
  });
}

inline torch::Tensor next_word(const torch::Tensor& logits, const torch::Tensor& labels) {
  return torch::nn::functional::cross_entropy(logits.flatten(0, 1), labels.flatten());
}

/// A step on batch `number`, in one part.
inline void step(const ParallelModel& parallel, models::GPT2& model,
                 torch::optim::Optimizer& optimizer, int number) {
  PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(1));
  const auto [tokens, labels] = words(number);
  optimizer.zero_grad();
  schedule.forward_backward_step({tokens, labels}, [&](const auto& micro) {
    return next_word(model->forward(micro[0]).to(torch::kFloat), micro[1]);
  });
  optimizer.step();
}

inline void expect_same(const torch::Tensor& actual, const torch::Tensor& expected,
                        const std::string& what) {
  EXPECT_EQ(actual.scalar_type(), expected.scalar_type()) << what;
  const torch::Tensor whole = full_tensor(actual).detach();
  ASSERT_EQ(whole.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(torch::equal(whole, expected.detach()))
      << what << " differs by " << (whole - expected).abs().max().item<double>();
}

inline void expect_same_gradients(const torch::nn::Module& model, const torch::nn::Module& plain) {
  parity::for_each_parameter(model, plain, [](const auto& name, const auto& own, const auto& one) {
    ASSERT_EQ(own.grad().defined(), one.grad().defined()) << name;
    if (one.grad().defined()) expect_same(own.grad(), one.grad(), "gradient of " + name);
  });
}

inline void expect_same_weights(const torch::nn::Module& model, const torch::nn::Module& plain) {
  parity::for_each_parameter(model, plain, [](const auto& name, const auto& own, const auto& one) {
    expect_same(own.detach(), one.detach(), "weight " + name);
  });
}

}  // namespace oslo::test
