// A model that is initialized with "amp" on one rank, beside the same model of plain LibTorch under
// an autocast guard around forward and loss: the same bits.
#include "tests/mixed_precision_test/cases.h"

namespace oslo::test {
namespace {

TEST(MixedPrecision, OneRankIsAGuardAroundForwardAndLossBitForBit) {
  for (const torch::Dtype type : {torch::kBFloat16, torch::kHalf}) {
    run_as_threads(1, [&](World world) {
      at::set_num_threads(1);
      const auto make = [] { return models::GPT2(models::GPT2Options()); };
      auto plain = make_seeded(7, make), model = make_seeded(7, make);
      torch::optim::AdamW plain_optimizer(plain->parameters()), optimizer(model->parameters());
      initialize(model, Config::parse(amp_config(type)), in(world));
      for (int step = 0; step < 5; ++step) {
        const auto [tokens, labels] = words(step);
        plain_optimizer.zero_grad();
        optimizer.zero_grad();
        torch::Tensor expected, loss;
        {
          const UnderAutocast guard(type);
          expected = plain->forward(tokens);
          loss = next_word(expected, labels);
        }
        loss.backward();
        const torch::Tensor output = model->forward(tokens);
        const torch::Tensor own = next_word(output, labels);
        own.backward();
        EXPECT_EQ(output.scalar_type(), type);
        expect_same(output, expected, "output");
        expect_same(own, loss, "loss");
        expect_same_gradients(*model, *plain);
        plain_optimizer.step();
        optimizer.step();
      }
      expect_same_weights(*model, *plain);
      const torch::NoGradGuard no_grad;
      const auto [tokens, labels] = words(9);
      const torch::Tensor output = model->forward(tokens);
      const UnderAutocast guard(type);
      expect_same(output, plain->forward(tokens), "evaluation");
    });
  }
}

}  // namespace
}  // namespace oslo::test
