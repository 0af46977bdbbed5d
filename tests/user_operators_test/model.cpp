// A model with operators of its own beside one device: planned by its example, trained on 3 ranks.
#include "tests/support/parity.h"
#include "tests/user_operators_test/library.h"

namespace {

using torch::Tensor;

/// x times the transposed weight of a layer, as authors call their kernels.
struct OwnKernelsImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const Tensor hidden = torch::gelu(user_operators::product(x, up->weight.t()));
    return x + user_operators::product(user_operators::sum_of({hidden, hidden}, up->bias),
                                       down->weight.t());
  }
  torch::nn::Linear up{register_module("up", torch::nn::Linear(7, 11))};
  torch::nn::Linear down{register_module("down", torch::nn::Linear(11, 7))};
};
TORCH_MODULE(OwnKernels);

struct WithoutRulesImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const Tensor peaks = std::get<1>(user_operators::unruled_peaks(x.detach()));
    return user_operators::unruled_product(x, up->weight.t()) * peaks.unsqueeze(-1);
  }
  torch::nn::Linear up{register_module("up", torch::nn::Linear(7, 11))};
};
TORCH_MODULE(WithoutRules);

parity::Batch batch(int) {
  return {torch::randn({5, 3, 7}, torch::kDouble), torch::zeros({5})};
}

Tensor loss(const Tensor& output, const Tensor&) {
  return output.pow(2).mean();
}

parity::Setup on_three() {
  parity::Setup setup;
  setup.world = 3;
  setup.config = R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 3},
                     "plan": {"up": "column", "down": "row"}})";
  setup.example = true;
  return setup;
}

TEST(UserOperators, TrainCutByColumnAndRow) {
  parity::expect_parity(
      on_three(), [] { return OwnKernels(); }, batch, loss,
      [](const parity::Outcome& outcome) {
        const oslo::Plan plan = outcome.parallel.plan();
        EXPECT_TRUE(plan.gathers.empty()) << plan.to_string();
        EXPECT_NE(plan.to_string().find("column"), std::string::npos) << plan.to_string();
        EXPECT_NE(plan.to_string().find("row"), std::string::npos) << plan.to_string();
        EXPECT_NE(plan.to_string().find("user_operators::product"), std::string::npos)
            << plan.to_string();
      });
}

TEST(UserOperators, TrainWithoutRules) {
  parity::Setup setup = on_three();
  setup.config = R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 3},
                     "plan": {"up": "column"}})";
  parity::expect_parity(
      setup, [] { return WithoutRules(); }, batch, loss,
      [](const parity::Outcome& outcome) {
        const std::string plan = outcome.parallel.plan().to_string();
        EXPECT_NE(plan.find("user_operators::unruled_product"), std::string::npos) << plan;
      });
}

}  // namespace
