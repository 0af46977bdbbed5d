// Adapters (LoRA) beside weights that nobody trains, at stages 2 and 3: acceptance Z8. The other
// side is data parallelism by hand, in LibTorch alone.
#include <atomic>
#include <memory>
#include <optional>

#include "parallelizers/data/sharded/shard_parameters.h"
#include "tests/zero_test/lora.h"

namespace oslo::zero_test {
namespace {

struct FrozenCase {
  int stage;
  bool again = false;     ///< layers are computed again in backward
  std::string keys = "";  ///< further ones of ZeRO
};

/// The same model twice: by hand, and shared out.
class FrozenPair {
 public:
  using Ddp = DistributedDataParallel<AdaptedGpt>;

  FrozenPair(World world, const FrozenCase& how)
      : rank_(world.rank()), stage_(how.stage), world_(world) {
    at::set_num_threads(1);
    for (AdaptedGpt* each : {&plain, &net}) {
      *each = test::make_seeded(11, [] { return AdaptedGpt(); });
      (*each)->freeze(is_adapter);
    }
    parallel.emplace(
        initialize(net,
                   zero_config(how.again ? R"(, "activation_checkpoint": {"enabled": true})" : "",
                               stage_, 0, how.keys),
                   in(world_)));
    // All of them, so that those that are trained later are known.
    reference = std::make_unique<AdamW>(plain->parameters(), torch::optim::AdamWOptions(0.01));
    if (stage_ == 3) {
      optimizer = std::make_unique<AdamW>(net->parameters(), torch::optim::AdamWOptions(0.01));
    } else {
      optimizer = std::make_unique<ZeroOptimizer<AdamW>>(*parallel, net->parameters(),
                                                         torch::optim::AdamWOptions(0.01));
    }
    wrap();
  }

  /// DistributedDataParallel is made again where what is trained changes.
  void train_only(const std::function<bool(const std::string&)>& trains) {
    plain->freeze(trains);
    net->freeze(trains);
    wrap();
  }

  Ledger& ledger() const { return parallel->mpu().data_group()->ledger(); }

  /// Of both; what moved in ours, forward and backward.
  std::pair<Traffic, Traffic> forward_backward(int step, const char* operation) {
    reference->zero_grad();
    for (int replica = 0; replica < kReplicas; ++replica) {
      const Tensors rows = tokens_of(step, replica);
      (loss_of(plain->forward(rows[0]), rows) / kReplicas).backward();
    }
    optimizer->zero_grad();
    const Tensors rows = tokens_of(step, rank_);
    ledger().clear();
    const Tensor loss = loss_of(ddp->forward(rows[0]), rows);
    const Traffic forward = ledger().total(operation);
    ledger().clear();
    loss.backward();
    return {forward, ledger().total(operation)};
  }

  void expect_equal(int step) const {
    const auto others = plain->named_parameters();
    for (const auto& each : net->named_parameters()) {
      const Tensor& one = others[each.key()];
      ASSERT_EQ(each.value().grad().defined(), one.grad().defined()) << step << each.key();
      EXPECT_TRUE(torch::equal(full_tensor(each.value()), one)) << step << ": " << each.key();
      if (!one.grad().defined()) continue;
      EXPECT_TRUE(torch::equal(full_tensor(each.value().grad()), one.grad()))
          << step << ": gradient of " << each.key();
    }
  }

  void step() const {
    reference->step();
    optimizer->step();
  }

  AdaptedGpt plain{nullptr}, net{nullptr};
  std::optional<ParallelModel> parallel;
  std::unique_ptr<torch::optim::Optimizer> reference, optimizer;
  std::unique_ptr<Ddp> ddp;

 private:
  void wrap() {
    ddp.reset();
    ddp = std::make_unique<Ddp>(net, parallel->mpu().data_group());
  }

  const int rank_, stage_;
  const World world_;
};

class Frozen : public ::testing::TestWithParam<std::tuple<FrozenCase, bool>> {
 protected:
  FrozenCase how() const {
    FrozenCase how = std::get<0>(GetParam());
    how.again = std::get<1>(GetParam());
    return how;
  }
};
INSTANTIATE_TEST_SUITE_P(StageAndRecomputation, Frozen,
                         ::testing::Combine(::testing::Values(FrozenCase{2}, FrozenCase{3},
                                                              FrozenCase{3, false, kGathered}),
                                            ::testing::Bool()));

TEST_P(Frozen, AdaptersAloneAreReducedAndHaveGradients) {
  std::atomic<int64_t> held = 0, reduced = 0;
  int64_t adapters = 0, number = 0;
  for (const auto& each : AdaptedGpt()->named_parameters()) {
    if (is_adapter(each.key())) adapters += each.value().nbytes(), ++number;
  }
  constexpr int kSteps = 4;
  run_as_threads(kReplicas, [&](World world) {
    FrozenPair pair(world, how());
    for (int step = 0; step < kSteps; ++step) {
      reduced += pair.forward_backward(step, "reduce_scatter").second.bytes;
      pair.expect_equal(step);
      for (const Tensor& each : pair.net->parameters()) {
        if (each.grad().defined()) held += local_tensor(each.grad()).nbytes();
      }
      pair.step();
      pair.expect_equal(step);
    }
  });
  EXPECT_EQ(held, kSteps * adapters);
  // At stage 3 an element a weight beside them says which rank has used it, and eleven a block
  // which it is, to each rank; with one copy of the weights nothing moves.
  const int64_t flags = how().stage == 3 ? 4 * kReplicas * (number + 11 * kBlocks) : 0;
  const bool one_copy = how().stage == 3 && how().keys != kGathered;
  EXPECT_EQ(reduced, one_copy ? 0 : kSteps * (adapters + flags));
}

TEST_P(Frozen, WhatIsTrainedMayChangeBetweenSteps) {
  const std::vector<std::function<bool(const std::string&)>> sets = {
      is_adapter,
      [](const std::string& name) { return is_adapter(name) && !name.starts_with("h.0."); },
      [](const std::string& name) { return is_adapter(name) || name.starts_with("ln_f."); },
      [](const std::string& name) {
        return name.ends_with(".base.weight") || name == "wte.weight";
      },
      [](const std::string& name) { return name.starts_with("h.2."); },
      is_adapter,
      [](const std::string&) { return true; }};
  run_as_threads(kReplicas, [&](World world) {
    FrozenPair pair(world, how());
    for (int step = 0; step < 14; ++step) {
      if (step % 2 == 0) pair.train_only(sets[step / 2]);
      pair.forward_backward(step, "");
      pair.expect_equal(step);
      pair.step();
      pair.expect_equal(step);
    }
  });
}

class FrozenInParts : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Recomputation, FrozenInParts, ::testing::Bool());

TEST_P(FrozenInParts, TheBaseIsGatheredOnceADirection) {
  run_as_threads(kReplicas, [again = GetParam()](World world) {
    FrozenPair pair(world, {3, again, kGathered});
    int64_t elsewhere = 0;
    for (const Tensor& each : pair.net->parameters()) {
      elsewhere += full_tensor(each).nbytes() - each.nbytes();
    }
    elsewhere += 4 * (kReplicas - 1) * (kBlocks + 1);  // by which ranks know the block
    for (int step = 0; step < 3; ++step) {
      const auto [forward, backward] = pair.forward_backward(step, "all_gather");
      EXPECT_EQ(forward.calls, kBlocks + 1);
      EXPECT_EQ(forward.bytes, elsewhere);
      EXPECT_EQ(backward.calls, kBlocks + 1);
      EXPECT_EQ(backward.bytes, elsewhere);
      pair.step();
    }
  });
}

/// Behind each block's backward nothing of it is whole, nor of the head's.
TEST_P(FrozenInParts, FrozenWeightsGoBehindTheirLastUse) {
  run_as_threads(kReplicas, [again = GetParam()](World world) {
    FrozenPair pair(world, {3, again, kGathered});
    const auto buckets = buckets_of(pair.net->parameters()).at(0);
    int reached = 0;
    pair.net->around = [&](int64_t i, const Tensor& x) {
      const Tensor y = pair.net->block(i, x);
      y.register_hook([&](const Tensor&) {
        EXPECT_EQ(buckets->gathered_bytes(), 0) << "behind block " << kBlocks - reached;
        ++reached;
      });
      return y;
    };
    const Tensors rows = tokens_of(0, world.rank());
    const Tensor loss = loss_of(pair.ddp->forward(rows[0]), rows);
    EXPECT_EQ(buckets->gathered_bytes(), 0);
    loss.backward();
    EXPECT_EQ(reached, kBlocks);
    EXPECT_EQ(buckets->gathered_bytes(), 0);
  });
}

}  // namespace
}  // namespace oslo::zero_test
