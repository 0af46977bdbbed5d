// The line that initialize prints where it could cut little, and where it does not.
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/models/small.h"
#include "tests/support/initialized.h"
#include "tests/support/parity.h"

namespace oslo {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

/// A linear layer as some authors write their own.
struct OwnLinearImpl : torch::nn::Module {
  OwnLinearImpl(int64_t in, int64_t out) {
    weight = register_parameter("weight", torch::randn({out, in}) / 8);
    bias = register_parameter("bias", torch::zeros({out}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return torch::linear(x, weight, bias); }
  torch::Tensor weight, bias;
};
TORCH_MODULE(OwnLinear);

struct OwnMlpImpl : torch::nn::Module {
  OwnMlpImpl()
      : up(register_module("up", OwnLinear(24, 96))),
        down(register_module("down", OwnLinear(96, 24))) {}
  torch::Tensor forward(const torch::Tensor& x) { return down(torch::gelu(up(x))); }
  OwnLinear up, down;
};
TORCH_MODULE(OwnMlp);

/// What initialize prints on `rank` of two.
template <typename Model>
std::string printed_by(Model model, const std::function<void(InitializeOptions&)>& tell = {},
                       int rank = 0) {
  auto how = test::in(World::fake(rank, 2));
  if (tell) tell(how);
  testing::internal::CaptureStderr();
  initialize(model, Config::parse(parity::tensor_parallel(2)), how);
  return testing::internal::GetCapturedStderr();
}

TEST(LittleCut, IsToldInOneLineOnRankZero) {
  const std::string line = printed_by(OwnMlp());
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1) << line;
  EXPECT_THAT(line,
              AllOf(HasSubstr("cut 0 % of the parameters' 18.9 KB over 2 tensor ranks"),
                    HasSubstr("18.9 KB of"), HasSubstr("OwnLinear"),
                    HasSubstr("cut_own_parameters with example_inputs"),
                    HasSubstr("\"up.weight\": \"shard(0)\""), Not(HasSubstr("planned by name"))));
  EXPECT_EQ(printed_by(OwnMlp(), {}, /*rank=*/1), "");
}

TEST(LittleCut, WhatHelpsHelps) {
  OwnMlp model;
  EXPECT_EQ(printed_by(model,
                       [&](InitializeOptions& how) {
                         how.cut_own_parameters = true;
                         how.example_inputs = [=]() mutable {
                           model->forward(torch::ones({2, 24}));
                         };
                       }),
            "");
  EXPECT_TRUE(is_placed(model->up->weight));
}

TEST(LittleCut, NamesRecurrentLayers) {
  torch::nn::Sequential model(torch::nn::LSTM(32, 64), torch::nn::Linear(64, 8));
  const std::string line = printed_by(model);
  EXPECT_THAT(line,
              AllOf(HasSubstr("cut 2 %"), HasSubstr("of torch::nn::LSTM"),
                    HasSubstr("parallel.plan() says why"), Not(HasSubstr("cut_own_parameters"))));
}

TEST(LittleCut, NothingIsPrintedWhereHalfIsCutOrNothingCanBe) {
  EXPECT_EQ(printed_by(models::Mlp()), "");
  EXPECT_EQ(printed_by(models::Tied()), "");
  testing::internal::CaptureStderr();
  initialize(OwnMlp(), Config(), test::in(World::alone()));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace oslo
