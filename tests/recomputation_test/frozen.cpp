// Acceptance A6: parameters inside of segments that learn nothing.
#include "tests/recomputation_test/counted_norms.h"
#include "tests/recomputation_test/gpt2.h"
#include "tests/support/initialized.h"
#include "tests/support/seeded.h"

namespace oslo::test::frozen {
namespace {

using torch::Tensor;

/// Table, positions and the first two blocks learn nothing, nor does any norm.
models::GPT2 partly_frozen() {
  auto model = make_seeded(3, [] { return models::GPT2(small_gpt2(4)); });
  for (const auto& item : model->named_parameters()) {
    const std::string& name = item.key();
    const bool learns = name.starts_with("h.2.") || name.starts_with("h.3.");
    const bool of_norm = name.find("ln_") != std::string::npos;
    item.value().requires_grad_(learns && !of_norm);
  }
  return model;
}

struct Trained {
  std::map<std::string, Tensor> weights;
  int norms = 0;  ///< of the last step
};

Trained train(const std::string& recomputation, World world) {
  at::set_num_threads(1);
  Trained trained;
  models::GPT2 model = partly_frozen();
  const auto parallel = initialize(
      model, Config::parse(R"({"model_parallelism": {"enable": true})" + recomputation + "}"),
      in(world));
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  const Tensor tokens = torch::arange(14).view({2, 7});
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const CountedNorms norms;
    loss_of_tokens(model->forward(tokens), tokens).backward();
    trained.norms = norms.made();
    optimizer.step();
  }
  for (const auto& item : model->named_parameters()) {
    EXPECT_EQ(item.value().grad().defined(), item.value().requires_grad()) << item.key();
    trained.weights[item.key()] = local_tensor(item.value()).detach().clone();
  }
  return trained;
}

TEST(FrozenParameters, OnlySegmentsThatBackwardComesToRunAgain) {
  run_as_threads(1, [](World world) {
    const Trained plain = train("", world);
    EXPECT_EQ(plain.norms, 4 * 2 + 1);
    for (const std::string form : {"", R"(, "keep": ["matmul", "attention"])"}) {
      const Trained again =
          train(R"(, "activation_checkpoint": {"enabled": true)" + form + "}", world);
      // Two blocks' norms, once.
      EXPECT_EQ(again.norms, plain.norms + 2 * 2) << form;
      for (const auto& [name, weight] : plain.weights) {
        EXPECT_TRUE(again.weights.at(name).equal(weight)) << name << form;
      }
    }
  });
}

}  // namespace
}  // namespace oslo::test::frozen
