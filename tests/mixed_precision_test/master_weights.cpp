// Models that their author turned into half, with parameters that are kept in fp32.
#include <sstream>

#include "tests/mixed_precision_test/cases.h"
#include "tests/support/bf16.h"
#include "tests/support/error_of.h"

namespace oslo::test {
namespace {

models::GPT2 make_plain() {
  return models::GPT2(models::GPT2Options());
}

std::string master_config(int tensor = 1) {
  return c10::str(R"({"master_weights": true, "model_parallelism": {"tensor_parallel_size": )",
                  tensor, "}}");
}

/// What a model with master weights is on one device, by hand: the half model computes, its
/// gradients go to parameters in fp32, and these are copied back.
class ByHand {
 public:
  ByHand(models::GPT2 half, torch::Dtype type) : half_(std::move(half)) {
    half_->to(type);
    for (const torch::Tensor& parameter : half_->parameters()) {
      masters_.push_back(parameter.detach().to(torch::kFloat).requires_grad_());
    }
  }

  const std::vector<torch::Tensor>& masters() const { return masters_; }
  models::GPT2& half() { return half_; }

  void take_gradients() {
    const auto parameters = half_->parameters();
    for (size_t i = 0; i < masters_.size(); ++i) {
      masters_[i].mutable_grad() = parameters[i].grad().to(torch::kFloat);
    }
    half_->zero_grad();
  }
  void give_weights() {
    const torch::NoGradGuard no_grad;
    const auto parameters = half_->parameters();
    for (size_t i = 0; i < masters_.size(); ++i) parameters[i].copy_(masters_[i]);
  }

 private:
  models::GPT2 half_;
  std::vector<torch::Tensor> masters_;
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(int kind,
                                                        const std::vector<torch::Tensor>& of) {
  if (kind == 0) return std::make_unique<torch::optim::AdamW>(of);
  if (kind == 1) {  // writes through p.data()
    return std::make_unique<torch::optim::SGD>(
        of, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
  }
  return std::make_unique<torch::optim::Adam>(of, torch::optim::AdamOptions().weight_decay(0.01));
}

class MasterWeights : public testing::TestWithParam<int> {};

/// Gradients of the tied table meet in fp32 where the half model adds them up in half: one step of
/// the narrow type, and all else the same bits.
TEST_P(MasterWeights, TrainAHalfModelInFp32) {
  const torch::Dtype type = GetParam() == 1 ? torch::kHalf : torch::kBFloat16;
  run_as_threads(1, [&](World world) {
    at::set_num_threads(1);
    ByHand by_hand(make_seeded(7, make_plain), type);
    auto model = make_seeded(7, make_plain);
    model->to(type);
    const auto before = make_optimizer(GetParam(), model->parameters());
    initialize(model, Config::parse(master_config()), in(world));
    const auto optimizer = make_optimizer(GetParam(), by_hand.masters());
    for (int step = 0; step < 4; ++step) {
      const auto [tokens, labels] = words(step);
      const torch::Tensor expected = by_hand.half()->forward(tokens);
      next_word(expected, labels).backward();
      by_hand.take_gradients();
      before->zero_grad();
      const torch::Tensor output = model->forward(tokens);
      next_word(output, labels).backward();
      expect_same(output, expected, "output");
      const auto parameters = model->parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_EQ(parameters[i].scalar_type(), torch::kFloat);
        EXPECT_EQ(parameters[i].grad().scalar_type(), torch::kFloat);
        expect_same(parameters[i].grad(), by_hand.masters()[i].grad(), "gradient");
      }
      before->step();
      optimizer->step();
      by_hand.give_weights();
      for (size_t i = 0; i < parameters.size(); ++i) {
        expect_same(parameters[i].detach(), by_hand.masters()[i].detach(), "master");
      }
    }
    const torch::NoGradGuard no_grad;
    const auto [tokens, labels] = words(9);
    expect_same(model->forward(tokens), by_hand.half()->forward(tokens), "evaluation");
  });
}

INSTANTIATE_TEST_SUITE_P(Optimizers, MasterWeights, testing::Values(0, 1, 2));

TEST(MasterWeightsOverRanks, TrainAHalfModelInFp32) {
  for (const int ranks : {2, 3}) {
    run_as_threads(ranks, [&](World world) {
      at::set_num_threads(1);
      auto exact = make_seeded(7, make_plain), half = make_seeded(7, make_plain),
           model = make_seeded(7, make_plain);
      half->to(torch::kBFloat16);
      model->to(torch::kBFloat16);
      initialize(model, Config::parse(master_config(ranks)), in(world));
      const auto [tokens, labels] = words(0);
      for (auto* each : {&exact, &half, &model}) {
        next_word((*each)->forward(tokens), labels).backward();
      }
      const auto of_exact = exact->named_parameters(), of_half = half->named_parameters();
      for (const auto& item : model->named_parameters()) {
        EXPECT_EQ(item.value().scalar_type(), torch::kFloat) << item.key();
        EXPECT_EQ(item.value().grad().scalar_type(), torch::kFloat) << item.key();
        expect_rounded_alike(item.value().grad(), of_half[item.key()].grad().to(torch::kFloat),
                             of_exact[item.key()].grad(), ranks, "gradient of " + item.key());
      }
    });
  }
}

TEST(MasterWeightsOverRanks, AWriteToAViewOfACopyIsRefused) {
  run_as_threads(1, [](World world) {
    auto model = make_seeded(7, make_plain);
    model->to(torch::kBFloat16);
    initialize(model, Config::parse(master_config()), in(world));
    const torch::NoGradGuard no_grad;
    torch::Tensor table = model->parameters()[0];
    expect_contains(error_of([&] { table[0].zero_(); }), {"'master_weights'", "p.detach()"});
    table.detach()[0].zero_();
    EXPECT_EQ(full_tensor(table)[0].abs().sum().item<float>(), 0);
  });
}

TEST(MasterWeightsOverRanks, CheckpointsAndThePlanSaySo) {
  run_as_threads(1, [](World world) {
    auto model = make_seeded(7, make_plain);
    model->to(torch::kBFloat16);
    const auto parallel = initialize(model, Config::parse(master_config()), in(world));
    EXPECT_EQ(parallel.plan().precision,
              "parameters kept in float32 (master weights), gradients and partial sums added up in "
              "float32");
    EXPECT_NE(parallel.plan().to_string().find("precision: "), std::string::npos);
  });
}

}  // namespace
}  // namespace oslo::test
