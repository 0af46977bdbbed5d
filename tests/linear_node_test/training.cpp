// A model whose backward overlaps collectives with products trains as on one device, and moves what
// it moves without.
#include <map>
#include <mutex>
#include <string>

#include "mpu/collectives/overlap.h"
#include "tests/models/gpt2.h"
#include "tests/support/parity.h"

namespace linear_node {
namespace {

struct OverlappedImpl : torch::nn::Module {
  OverlappedImpl(const models::GPT2Options& options, bool overlaps)
      : gpt(register_module("gpt", models::GPT2(options))), overlaps_(overlaps) {}

  torch::Tensor forward(const torch::Tensor& tokens) {
    const oslo::OverlapScope overlap(overlaps_);
    return gpt->forward(tokens);
  }

  models::GPT2 gpt;

 private:
  bool overlaps_;
};
TORCH_MODULE(Overlapped);

/// What each rank's tensor group moved, by operation and rule.
using Moved = std::map<std::string, oslo::Traffic>;

Moved train(int ranks, const std::string& plan, bool overlaps) {
  models::GPT2Options options;
  options.vocabulary = 35;
  options.hidden = 24;
  options.heads = 6;
  parity::Setup setup;
  setup.world = ranks;
  setup.steps = 2;
  setup.example = true;
  setup.config = R"({"model_parallelism": {"enable": true, "tensor_parallel_size": )" +
                 std::to_string(ranks) + "}" + plan + "}";
  Moved moved;
  std::mutex mutex;
  parity::expect_parity(
      setup, [&] { return Overlapped(options, overlaps); },
      [&](int) {
        return parity::Batch{torch::randint(options.vocabulary, {3, 7}),
                             torch::randint(options.vocabulary, {3, 7})};
      },
      [](const torch::Tensor& logits, const torch::Tensor& target) {
        return torch::nn::functional::cross_entropy(logits.view({-1, logits.size(-1)}),
                                                    target.view({-1}));
      },
      [&](const parity::Outcome& outcome) {
        const std::lock_guard<std::mutex> lock(mutex);
        for (const auto& entry : outcome.parallel.mpu().tensor_group()->ledger().entries()) {
          moved[c10::str(outcome.rank, " ", entry.operation, " ", entry.rule)] += entry.traffic;
        }
      });
  return moved;
}

TEST(LinearTraining, AllReducesOfColumnLayers) {
  EXPECT_EQ(train(2, "", true), train(2, "", false));
}

TEST(LinearTraining, ReduceScattersAlongTheSequence) {
  const std::string plan = R"(, "plan": {
      "gpt.wte": "vocab scatter=-2", "gpt.wpe": "replicate",
      "gpt.h.*.attn.c_attn": "column blocks=3", "gpt.h.*.attn.c_proj": "row scatter=-2",
      "gpt.h.*.c_fc": "column", "gpt.h.*.c_proj": "row scatter=-2"})";
  EXPECT_EQ(train(3, plan, true), train(3, plan, false));
}

}  // namespace
}  // namespace linear_node
