#pragma once

#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>

#include <memory>
#include <string>
#include <vector>

#include "oslo_cpp/zero/zero_optimizer.h"
#include "tests/support/error_of.h"
#include "tests/support/initialized.h"
#include "tests/support/seeded.h"

namespace oslo::zero_test {

using test::error_of;
using test::in;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

/// Plain LibTorch; no size divides by the number of ranks. Of a convolution's weight in channels-
/// last, a number without dimensions, a parameter that nobody trains, and a head that is tied.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    convolution = register_module("convolution", torch::nn::Conv2d(3, 5, 3));
    up = register_module("up", torch::nn::Linear(5, 13));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({13})));
    down = register_module("down", torch::nn::Linear(13, 5));
    head = register_module("head", torch::nn::Linear(torch::nn::LinearOptions(5, 13).bias(false)));
    head->weight = up->weight;
    scale = register_parameter("scale", torch::full({}, 1.5));
    frozen = register_parameter("frozen", torch::randn({7}), /*requires_grad=*/false);
    to(torch::kDouble);
    convolution->to(torch::kDouble);
    const torch::NoGradGuard no_grad;
    convolution->weight.set_data(convolution->weight.contiguous(at::MemoryFormat::ChannelsLast));
  }
  /// images [N, 3, 6, 6]
  Tensor forward(const Tensor& images) {
    const Tensor x = convolution->forward(images).mean({2, 3});
    return head->forward(down->forward(torch::gelu(norm->forward(up->forward(x))))) * scale;
  }
  torch::nn::Conv2d convolution{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr}, head{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  Tensor scale, frozen;
};
TORCH_MODULE(Net);

inline Net make_net() {
  return test::make_seeded(5, [] { return Net(); });
}

using AdamW = torch::optim::AdamW;
inline torch::optim::AdamWOptions adamw() {
  return torch::optim::AdamWOptions(0.01).amsgrad(true);
}

/// Rows of a batch of 8, by rank.
inline Tensors batch(int step, int rank, int ranks) {
  const Tensor x = torch::sin(torch::arange(8 * 3 * 36, torch::kDouble) * 0.37 + step);
  const Tensor y = torch::cos(torch::arange(8 * 13, torch::kDouble) * 0.21 + step);
  return {x.view({8, 3, 6, 6}).tensor_split(ranks)[rank],
          y.view({8, 13}).tensor_split(ranks)[rank]};
}

/// What is trained, each once.
inline Tensors trained(const Net& net) {
  return {net->convolution->weight,
          net->convolution->bias,
          net->up->weight,
          net->up->bias,
          net->norm->weight,
          net->norm->bias,
          net->down->weight,
          net->down->bias,
          net->scale};
}

inline int64_t elements(const Tensors& tensors) {
  int64_t all = 0;
  for (const Tensor& each : tensors) all += each.numel();
  return all;
}

inline void expect_equal(const Net& net, const Net& other, const std::string& what) {
  const auto parameters = other->named_parameters();
  for (const auto& each : net->named_parameters()) {
    EXPECT_TRUE(torch::equal(each.value(), parameters[each.key()])) << what << ": " << each.key();
  }
  EXPECT_TRUE(torch::equal(net->head->weight, other->head->weight)) << what;
}

inline void expect_near(const Net& net, const Net& plain) {
  const Tensors a = trained(net), b = trained(plain);
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(torch::allclose(full_tensor(a[i]), b[i], 1e-9, 1e-11)) << i;
  }
}

/// The same batch on all ranks, so that nothing has to be exchanged.
inline void train(Net& net, torch::optim::Optimizer& optimizer, int from, int to) {
  for (int step = from; step < to; ++step) {
    const Tensors rows = batch(step, 0, 1);
    optimizer.zero_grad();
    torch::mse_loss(net->forward(rows[0]), rows[1]).backward();
    optimizer.step();
  }
}

/// A user's own: as LARS, the longer a tensor the larger its step, so that no tensor may be cut.
struct ByNorm : torch::optim::SGD {
  using torch::optim::SGD::SGD;
  at::Tensor step(LossClosure /*closure*/ = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (auto& group : param_groups()) {
      for (Tensor& each : group.params()) {
        if (each.grad().defined()) each.sub_(each.grad() * each.norm() * 0.1);
      }
    }
    return {};
  }
};

/// Of stage 3: weights are gathered; data ranks of a host share them, as they do without either.
inline const std::string kGathered = R"(, "copies_per_host": 0)",
                         kOneCopy = R"(, "copies_per_host": 1)";

/// `shards`: data ranks that have the weights once; 0: all. `keys`: further ones of ZeRO.
inline Config zero_config(const std::string& more = "", int stage = 1, int shards = 0,
                          const std::string& keys = "") {
  const std::string size = shards == 0 ? "" : c10::str(R"(, "shard_size": )", shards);
  return Config::parse(c10::str(R"({"zero_optimization": {"enabled": true, "stage": )", stage, size,
                                keys, "}", more, "}"));
}

/// AdamW of a stage: at 1 and 2 `ZeroOptimizer`, otherwise LibTorch's own.
inline std::unique_ptr<AdamW> adamw_of(const ParallelModel& parallel, const Net& net, int stage) {
  if (stage == 1 || stage == 2) return std::make_unique<ZeroOptimizer<AdamW>>(parallel, adamw());
  return std::make_unique<AdamW>(trained(net), adamw());
}

const std::string kTensor = R"(, "model_parallelism": {"tensor_parallel_size": 2})";

/// Elements of these that `rank` of `ranks` steps; parameters that other axes cut count as parts.
inline int64_t elements_stepped(const Tensors& parameters, int ranks, int rank) {
  const std::vector<SharedRows> rows = RowSharing(ShareUnit::rows, ranks).share(parameters);
  int64_t all = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    all += elements_of_ranks(parameters[i], rows[i], ranks)[rank];
  }
  return all;
}

}  // namespace oslo::zero_test
