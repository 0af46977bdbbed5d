// A rank may compute something for itself between forward and backward, while the last layer's
// segment, which no other layer's parameter ends, is still open.
#include "tests/support/initialized.h"
#include "tests/support/parity.h"

namespace oslo::test::one_rank_alone {
namespace {

using torch::Tensor;

torch::nn::Sequential make() {
  torch::nn::Sequential model;
  for (int layer = 0; layer < 3; ++layer) {
    model->push_back(torch::nn::Linear(7, 7));
    model->push_back(torch::nn::GELU());
  }
  model->to(torch::kDouble);
  return model;
}

TEST(RecomputedLayers, OneRankMayComputeForItselfBeforeBackward) {
  for (const std::string form :
       {"", R"(, "keep": ["matmul"])", R"(, "keep": ["matmul"], "keep_at_most": 0.6)"}) {
    SCOPED_TRACE(form);
    run_as_threads(2, [&](World world) {
      at::set_num_threads(1);
      auto plain = make_seeded(3, make), model = make_seeded(3, make);
      const auto parallel = initialize(
          model,
          Config::parse(R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 2},)"
                        R"( "activation_checkpoint": {"enabled": true)" +
                        form + "}}"),
          in(world));
      const Tensor x = torch::linspace(-1, 1, 35, torch::kDouble).view({5, 7});
      for (int step = 0; step < 3; ++step) {
        plain->zero_grad();
        model->zero_grad();
        plain->forward(x).square().sum().backward();
        const Tensor loss = model->forward(x).square().sum();
        if (world.rank() == step % 2) (torch::linspace(0, 1, 9) + 1).exp_().view({3, 3});
        loss.backward();
        parity::expect_gradients(*model, *plain);
      }
    });
  }
}

}  // namespace
}  // namespace oslo::test::one_rank_alone
