#pragma once

#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/initialized.h"
#include "tests/support/parity.h"
#include "tests/support/pipeline_parity.h"

// An engine of several ranks against a loop in plain LibTorch on one device, which accumulates and
// clips by hand and never saw the library.
namespace oslo::test::engines {

using pipeline_parity::Grid;
using torch::Tensor;
using Example = torch::data::Example<>;
using Batches = std::vector<Example>;

inline torch::nn::Sequential make_net() {
  return make_seeded(6, [] {
    torch::nn::Sequential net(torch::nn::Linear(3, 7), torch::nn::Tanh(), torch::nn::Linear(7, 6),
                              torch::nn::Tanh(), torch::nn::Linear(6, 7), torch::nn::Tanh(),
                              torch::nn::Linear(7, 2));
    net->to(torch::kDouble);
    return net;
  });
}

/// Rows of numbers that nobody draws.
inline Batches make_batches(const std::vector<int64_t>& sizes) {
  const auto numbers = [](int64_t rows, int64_t width, double step) {
    return torch::sin(torch::arange(rows * width, torch::kDouble) * step).view({rows, width});
  };
  Batches batches;
  for (const int64_t size : sizes) {
    const double more = 0.1 * static_cast<double>(batches.size());
    batches.emplace_back(numbers(size, 3, 1.3 + more), numbers(size, 2, 0.7 + more));
  }
  return batches;
}

/// Two steps of three batches; of each step the last one is smaller.
inline Batches unequal_batches() {
  return make_batches({8, 8, 5, 8, 7, 4});
}

inline Tensor mean_loss(const Tensor& output, const Tensor& label) {
  return torch::mse_loss(output, label);
}

/// Some rows count nothing, as padding does.
inline CountedLoss counted_loss(const Tensor& output, const Tensor& label) {
  const Tensor counts = (label.select(1, 0) > -0.5).to(torch::kDouble);
  return {((output - label).pow(2).sum(1) * counts).sum(), counts.sum()};
}

/// Its steps are as long as gradients are large: a wrong factor shows, unless they are clipped.
inline torch::optim::SGD make_optimizer(const torch::nn::Sequential& net) {
  return torch::optim::SGD(net->parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
}

constexpr double kClip = 0.05;

/// The loop by hand.
class PlainLoop {
 public:
  /// `clip`: the norm that gradients are clipped to; 0: they are not.
  explicit PlainLoop(double clip = kClip) : clip_(clip), optimizer_(make_optimizer(net)) {}

  /// One step of these batches, by the mean of their means.
  void step(const Batches& batches) {
    optimizer_.zero_grad();
    for (const Example& batch : batches) {
      const Tensor loss = mean_loss(net->forward(batch.data), batch.target);
      (loss / static_cast<double>(batches.size())).backward();
    }
    clip_and_step();
  }

  /// One by the mean over all that counts.
  void counted_step(const Batches& batches) {
    optimizer_.zero_grad();
    Tensor sum = torch::zeros({}, torch::kDouble);
    double count = 0;
    for (const Example& batch : batches) {
      const CountedLoss loss = counted_loss(net->forward(batch.data), batch.target);
      sum = sum + loss.sum;
      count += loss.count.value();
    }
    (sum / count).backward();
    clip_and_step();
  }

  torch::nn::Sequential net = make_net();

 private:
  void clip_and_step() {
    if (clip_ > 0) {
      ASSERT_GT(torch::nn::utils::clip_grad_norm_(net->parameters(), clip_), clip_);
    }
    optimizer_.step();
  }

  double clip_;
  torch::optim::SGD optimizer_;
};

/// `more`: keys beside "parallel", with a comma in front.
inline std::string engine_config(const Grid& grid, const std::string& more, int chunks = 1) {
  const std::string pipeline =
      grid.pipeline == 1
          ? "1"
          : c10::str(R"({"size": )", grid.pipeline,
                     chunks == 1 ? "" : c10::str(R"(, "num_model_chunks": )", chunks), "}");
  return c10::str(R"({"parallel": {"tensor": {"size": )", grid.tensor,
                  R"(, "mode": "1d"}, "pipeline": )", pipeline, "}", more, "}");
}

constexpr const char* kThreeBatches = R"(, "gradient_accumulation": 3, "clip_grad_norm": 0.05)";
constexpr const char* kThreeUnclipped = R"(, "gradient_accumulation": 3)";

/// Weights of this rank's stages.
inline void expect_same_weights(const torch::nn::Sequential& net,
                                const torch::nn::Sequential& plain) {
  parity::for_each_parameter(
      *net, *plain, [](const std::string& name, const Tensor& mine, const Tensor& expected) {
        if (!is_here(mine)) return;
        parity::expect_close(pipeline_parity::whole_here(mine.detach()), expected.detach(),
                             "weight " + name, parity::kTrained);
      });
}

}  // namespace oslo::test::engines
