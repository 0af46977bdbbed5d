// Values that live on pipeline stages: an untouched model on two of them, under a schedule written
// by hand, equal to plain LibTorch.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>

#include "parallelizers/pipeline/run/micro_batch.h"
#include "tests/residency_test/stages.h"
#include "tests/support/seeded.h"

namespace oslo::test {
namespace {

using torch::Tensor;
namespace F = torch::nn::functional;

constexpr int kSteps = 4, kMicroBatches = 3, kBatch = 4, kTokens = 5, kWidth = 7, kWords = 11;

/// A layer used on both stages, statistics that are written, a cache that is no buffer and is
/// written through a view, and devices read from parameters of either stage.
struct NetImpl : torch::nn::Module {
  NetImpl()
      : wte(register_module("wte", torch::nn::Embedding(kWords, kWidth))),
        shared(register_module("shared", torch::nn::Linear(kWidth, kWidth))),
        norm(register_module("norm", torch::nn::BatchNorm1d(kWidth))),
        head(register_module("head", torch::nn::Linear(kWidth, kWords))),
        cache(torch::zeros({kBatch + 1, kTokens, kWidth})) {}

  Tensor forward(const Tensor& tokens) {
    Tensor x = wte(tokens.to(parameters().back().device()).to(parameters()[0].device()));
    x = x + torch::tanh(shared(x));
    x = norm(x.transpose(1, 2)).transpose(1, 2);
    {
      const torch::NoGradGuard no_grad;
      cache.narrow(0, 0, kBatch).copy_(x);
    }
    x = x + torch::tanh(shared(x)) + cache.mean(0);
    return head(x);
  }

  torch::nn::Embedding wte;
  torch::nn::Linear shared;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear head;
  Tensor cache;
};
TORCH_MODULE(Net);

Tensor tokens_of(int step, int micro_batch) {
  return torch::arange(kBatch * kTokens)
      .mul(3 + micro_batch)
      .add(step)
      .remainder(kWords)
      .view({kBatch, kTokens});
}

Tensor loss_of(Net& net, const Tensor& tokens) {
  return F::cross_entropy(net->forward(tokens).view({-1, kWords}), tokens.roll(1, 1).view({-1})) /
         kMicroBatches;
}

/// What one training step leaves behind.
struct Step {
  std::vector<double> losses;
  std::map<std::string, Tensor> gradients, weights;
};

torch::optim::AdamW optimizer_of(Net& net) {
  return torch::optim::AdamW(net->parameters(), torch::optim::AdamWOptions(1e-2));
}

std::vector<Step> plain_steps(Net& net) {
  auto optimizer = optimizer_of(net);
  std::vector<Step> steps(kSteps);
  for (int s = 0; s < kSteps; ++s) {
    Step& step = steps[s];
    optimizer.zero_grad();
    for (int i = 0; i < kMicroBatches; ++i) {
      const Tensor loss = loss_of(net, tokens_of(s, i));
      loss.backward();
      step.losses.push_back(loss.item<double>());
    }
    optimizer.step();
    for (const auto& item : net->named_parameters()) {
      step.gradients[item.key()] = item.value().grad().clone();
      step.weights[item.key()] = item.value().detach().clone();
    }
    for (const auto& item : net->named_buffers()) step.weights[item.key()] = item.value().clone();
  }
  return steps;
}

void place_all(Net& net, const ContextPtr& context) {
  const auto all = [&](torch::nn::Module& module, StageSet stages) {
    for (const auto& item : module.named_parameters()) {
      place(item.value(), context, stages, item.key());
    }
    for (const auto& item : module.named_buffers())
      place(item.value(), context, stages, item.key());
  };
  all(*net->wte, on(0));
  all(*net->shared, on(0) | on(1));
  all(*net->norm, on(1));
  all(*net->head, on(1));
}

void expect_close(const Tensor& ours, const Tensor& plain, const std::string& what) {
  EXPECT_TRUE(torch::allclose(ours, plain, 1e-5, 1e-6))
      << what << ": " << (ours - plain).abs().max().item<double>();
}

struct Action {
  char what;  ///< 'F'orward or 'B'ackward
  int micro_batch;
};

/// One forward, one backward: stage 0 is a micro-batch ahead.
std::vector<Action> one_forward_one_backward(int stage) {
  if (stage == 0) return {{'F', 0}, {'F', 1}, {'B', 0}, {'F', 2}, {'B', 1}, {'B', 2}};
  return {{'F', 0}, {'B', 0}, {'F', 1}, {'B', 1}, {'F', 2}, {'B', 2}};
}

/// The forward and backward passes of a step; the losses that this rank has.
std::vector<double> run_step(Net& net, int step, const MPU& mpu, const ModelContext& context) {
  std::vector<double> losses;
  std::vector<std::unique_ptr<MicroBatch>> under_way(kMicroBatches);
  std::vector<Tensor> local_losses(kMicroBatches);
  for (const auto [what, i] : one_forward_one_backward(context.stage_ranks().rank())) {
    if (what == 'B') {
      under_way[i]->backward(context.stage_ranks().rank(), local_losses[i]);
      continue;
    }
    under_way[i] =
        std::make_unique<MicroBatch>(mpu.pipeline_group(), context.stage_ranks(), i, kMicroBatches);
    const StageCarrier::Scope scope(under_way[i].get());
    const Tensor loss = loss_of(net, tokens_of(step, i));
    EXPECT_TRUE(is_placed(loss));
    EXPECT_EQ(layout(loss)->stages(), on(1));
    EXPECT_TRUE(loss.requires_grad());
    // One activation crosses, once.
    EXPECT_EQ(under_way[i]->sent(), context.stage_ranks().rank() == 0 ? 1 : 0);
    EXPECT_EQ(under_way[i]->received(), context.stage_ranks().rank() == 1 ? 1 : 0);
    if (!is_here(loss)) continue;
    local_losses[i] = local_tensor(loss);
    losses.push_back(local_losses[i].item<double>());
  }
  return losses;
}

void expect_step(Net& net, const Step& plain) {
  const auto expect_weights = [&](const auto& items) {
    for (const auto& item : items) {
      const Tensor& expected = plain.weights.at(item.key());
      EXPECT_EQ(item.value().sizes(), expected.sizes()) << item.key();
      EXPECT_EQ(item.value().dtype(), expected.dtype()) << item.key();
      if (is_here(item.value())) expect_close(local_tensor(item.value()), expected, item.key());
    }
  };
  expect_weights(net->named_parameters());
  expect_weights(net->named_buffers());
  for (const auto& item : net->named_parameters()) {
    const Tensor gradient = item.value().grad();
    EXPECT_EQ(gradient.defined(), is_here(item.value())) << item.key();
    if (!gradient.defined()) continue;
    expect_close(local_tensor(gradient), plain.gradients.at(item.key()),
                 "gradient of " + item.key());
  }
}

TEST(Residency, TwoStagesTrainAsOneDevice) {
  const auto make = [] { return make_seeded(5, [] { return Net(); }); };
  Net plain = make();
  const std::vector<Step> expected = plain_steps(plain);

  on_stages(2, [&](const MPU& mpu, const ContextPtr& context) {
    Net net = make();
    auto optimizer = optimizer_of(net);
    place_all(net, context);
    Ledger& ledger = mpu.pipeline_group()->ledger();
    for (int s = 0; s < kSteps; ++s) {
      optimizer.zero_grad();
      const auto losses = run_step(net, s, mpu, *context);
      EXPECT_EQ(ledger.total("all_reduce").calls, 2 * s);
      for (const Tensor& parameter : net->shared->parameters()) {
        const Tensor gradient = local_tensor(parameter.grad());
        gradient.copy_(mpu.pipeline_group()->all_reduce(gradient.clone()));
      }
      ASSERT_EQ(losses.size(), context->stage_ranks().rank() == 1 ? kMicroBatches : 0u);
      for (size_t i = 0; i < losses.size(); ++i) {
        EXPECT_NEAR(losses[i], expected[s].losses[i], 1e-6) << s << ", " << i;
      }
      optimizer.step();
      expect_step(net, expected[s]);
    }
    // One activation forward and its gradient back, and the two parameters of the shared layer.
    constexpr int kCrossings = kSteps * kMicroBatches;
    EXPECT_EQ(ledger.total("send").calls, kCrossings);
    EXPECT_EQ(ledger.total("receive").calls, kCrossings);
    // The activation and its gradient lie transposed in memory: the order of 3 dimensions goes
    // along.
    EXPECT_EQ(ledger.total("receive").elements, kCrossings * (kBatch * kTokens * kWidth + 3));
    EXPECT_EQ(ledger.total("all_reduce").calls, 2 * kSteps);
    EXPECT_EQ(ledger.total("all_reduce").elements, kSteps * (kWidth * kWidth + kWidth));
    EXPECT_EQ(ledger.total().calls, 2 * kCrossings + 2 * kSteps);  // and nothing else
    EXPECT_EQ(mpu.tensor_group()->ledger().total().calls, 0);
    EXPECT_EQ(layout(net->cache)->stages(), on(1));
    EXPECT_FALSE(net->cache.requires_grad());
    if (context->stage_ranks().rank() == 1)
      expect_close(local_tensor(net->cache), plain->cache, "the cache");
  });
}

}  // namespace
}  // namespace oslo::test
