// A backward pass that throws in the middle, in a user's own function or where a layer is computed
// again: acceptance Z7. The next step is that of a run that never had it, and nothing is whole.
#include "parallelizers/data/sharded/shard_parameters.h"
#include "tests/zero_test/lora.h"

namespace oslo::zero_test {
namespace {

/// A user's own: nothing in forward, and throws in backward.
struct ThrowsInBackward : torch::autograd::Function<ThrowsInBackward> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list) {
    throw std::runtime_error("thrown in backward");
  }
};

enum class Where { own_function, computed_again, hook_of_a_weight };

class ThrownPass : public ::testing::TestWithParam<std::tuple<int, Where, std::string, bool>> {};
INSTANTIATE_TEST_SUITE_P(
    StagePlaceKeysAndFrozen, ThrownPass,
    ::testing::Combine(::testing::Values(2, 3),
                       ::testing::Values(Where::own_function, Where::computed_again,
                                         Where::hook_of_a_weight),
                       ::testing::Values("", kGathered, kGathered + R"(, "reshard": false)"),
                       ::testing::Bool()));

TEST_P(ThrownPass, LeavesNothingAndTheNextStepIsAnOrdinaryOne) {
  const auto& [stage, where, more, frozen] = GetParam();
  if (stage < 3 && !more.empty()) return;
  const std::string key = stage == 3 ? more : "";
  const std::string config =
      c10::str(R"({"zero_optimization": {"enabled": true, "stage": )", stage, key, "}}");
  run_as_threads(kReplicas, [&, stage = stage, where = where, frozen = frozen](World world) {
    at::set_num_threads(1);
    AdaptedGpt plain = test::make_seeded(11, [] { return AdaptedGpt(); });
    AdaptedGpt net = test::make_seeded(11, [] { return AdaptedGpt(); });
    if (frozen) plain->freeze(is_adapter), net->freeze(is_adapter);
    const ParallelModel parallel = initialize(net, Config::parse(config), in(world));
    Tensors trained_by_hand, ours;
    for (const Tensor& each : plain->parameters()) {
      if (each.requires_grad()) trained_by_hand.push_back(each);
    }
    for (const Tensor& each : net->parameters()) {
      if (each.requires_grad()) ours.push_back(each);
    }
    AdamW reference(trained_by_hand, torch::optim::AdamWOptions(0.01));
    std::unique_ptr<AdamW> optimizer;
    if (stage == 3) {
      optimizer = std::make_unique<AdamW>(ours, torch::optim::AdamWOptions(0.01));
    } else {
      optimizer =
          std::make_unique<ZeroOptimizer<AdamW>>(parallel, torch::optim::AdamWOptions(0.01));
    }
    DistributedDataParallel<AdaptedGpt> ddp(net, parallel.mpu().data_group(),
                                            DDPOptions().bucket_cap_mb(1e-3));
    const auto gathered = [&] {
      int64_t bytes = 0;
      for (const auto& each : buckets_of(net->parameters())) bytes += each->gathered_bytes();
      return bytes;
    };
    int calls = 0;
    const auto throwing = [&](int64_t i, const Tensor& x) {
      if (i != 1) return net->block(i, x);
      if (where == Where::own_function) return net->block(i, ThrowsInBackward::apply(x));
      return checkpoint(
          [&](const Tensor& each) {
            const Tensor y = net->block(1, each);
            if (++calls == 2) throw std::runtime_error("thrown again");
            return y;
          },
          x);
    };
    for (int step = 0; step < 4; ++step) {
      const Tensors rows = tokens_of(step, world.rank());
      if (step == 2) {
        std::optional<unsigned> hook;
        const Tensor weight = net->h[1]->as<AdaptedBlock>()->attention->a->weight;
        if (where == Where::hook_of_a_weight) {
          hook = weight.register_hook(
              [](const Tensor&) -> Tensor { throw std::runtime_error("thrown by a hook"); });
        } else {
          net->around = throwing;
        }
        const Tensor loss = loss_of(ddp.forward(rows[0]), rows);
        EXPECT_THROW(loss.backward(), std::runtime_error);
        EXPECT_EQ(gathered(), 0);
        net->around = nullptr;
        if (hook) weight.remove_hook(*hook);
      }
      reference.zero_grad();
      for (int replica = 0; replica < kReplicas; ++replica) {
        const Tensors theirs = tokens_of(step, replica);
        (loss_of(plain->forward(theirs[0]), theirs) / kReplicas).backward();
      }
      optimizer->zero_grad();
      loss_of(ddp.forward(rows[0]), rows).backward();
      EXPECT_EQ(gathered(), 0);
      for (size_t i = 0; i < ours.size(); ++i) {
        EXPECT_TRUE(torch::equal(full_tensor(ours[i].grad()), trained_by_hand[i].grad()))
            << "step " << step << ": gradient " << i;
      }
      reference.step();
      optimizer->step();
      for (size_t i = 0; i < ours.size(); ++i) {
        EXPECT_TRUE(torch::equal(full_tensor(ours[i]), trained_by_hand[i]))
            << "step " << step << ": weight " << i;
      }
    }
  });
}

}  // namespace
}  // namespace oslo::zero_test
