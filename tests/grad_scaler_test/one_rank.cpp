// What PyTorch's GradScaler does, on one rank: numbers, states, errors.
#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>

#include <limits>

#include "parallelizers/placement/carrier/mark.h"
#include "tests/grad_scaler_test/by_hand.h"
#include "tests/support/error_of.h"
#include "tests/support/initialized.h"
#include "tests/support/parity.h"

namespace oslo::test {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

torch::nn::Sequential small_model() {
  return make_seeded(5, [] {
    torch::nn::Sequential model(torch::nn::Linear(3, 5), torch::nn::Tanh(),
                                torch::nn::Linear(5, 2));
    return model;
  });
}

Tensor input_of(int step) {
  return torch::sin(torch::arange(12, torch::kFloat) * 0.7 + step).view({4, 3});
}

TEST(GradScaler, DoesWhatAProgramDoesByHand) {
  torch::nn::Sequential model = small_model(), plain = small_model();
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  torch::optim::AdamW by_hand(plain->parameters(), torch::optim::AdamWOptions(1e-2));
  GradScaler scaler(model, GradScalerOptions().init_scale(64).growth_interval(3));
  ScaledByHand scaled(64, 3);
  for (int step = 0; step < 14; ++step) {
    const bool overflows = step == 2 || step == 7 || step == 8;
    const double factor = overflows ? kInfinity : 1;
    optimizer.zero_grad();
    by_hand.zero_grad();
    scaler.scale(model->forward(input_of(step)).pow(2).mean() * factor).backward();
    (plain->forward(input_of(step)).pow(2).mean() * factor * scaled.scale()).backward();
    const bool finite = scaled.unscale(plain->parameters());
    EXPECT_EQ(finite, !overflows);
    if (step % 2 == 0) {
      scaler.unscale_(optimizer);
      if (finite) parity::expect_gradients(*model, *plain, {0, 0});
    }
    EXPECT_EQ(scaler.step(optimizer), finite) << step;
    if (finite) by_hand.step();
    scaler.update();
    scaled.update(finite);
    EXPECT_EQ(scaler.get_scale(), scaled.scale()) << step;
    parity::expect_weights(*model, *plain, {0, 0});
  }
  EXPECT_EQ(scaler.ledger().total().calls, 0);
}

TEST(GradScaler, HasPyTorchsNumbers) {
  torch::nn::Linear model(3, 2);
  GradScaler scaler(model);
  EXPECT_EQ(scaler.get_scale(), 65536.0);
  EXPECT_EQ(scaler.get_growth_factor(), 2.0);
  EXPECT_EQ(scaler.get_backoff_factor(), 0.5);
  EXPECT_EQ(scaler.get_growth_interval(), 2000);
  EXPECT_TRUE(scaler.is_enabled());
  EXPECT_EQ(scaler.state_dict(), nlohmann::json::parse(R"({"scale": 65536.0, "growth_factor": 2.0,
      "backoff_factor": 0.5, "growth_interval": 2000, "_growth_tracker": 0})"));
}

/// A loss of half precision times 65536 would be infinite.
TEST(GradScaler, AScaledLossOfHalfPrecisionIsFloat) {
  torch::nn::Linear model(3, 2);
  GradScaler scaler(model);
  for (const auto type : {torch::kHalf, torch::kBFloat16, torch::kFloat}) {
    const Tensor loss = torch::full({}, 2.5, type);
    EXPECT_EQ(scaler.scale(loss).scalar_type(), torch::kFloat);
    EXPECT_EQ(scaler.scale(loss).item<double>(), 163840.0);
  }
  EXPECT_EQ(scaler.scale(torch::full({}, 2.5, torch::kDouble)).scalar_type(), torch::kDouble);
  EXPECT_EQ(scaler.scale(std::vector<Tensor>{torch::ones({}), torch::ones({2})})[1].sizes(),
            torch::IntArrayRef({2}));
}

TEST(GradScaler, ResumesFromItsState) {
  torch::nn::Linear model(3, 2);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const auto step = [&](GradScaler& scaler, double factor) {
    optimizer.zero_grad();
    scaler.scale(model->forward(torch::ones({4, 3})).sum() * factor).backward();
    scaler.step(optimizer);
    scaler.update();
    return scaler.get_scale();
  };
  const auto options = GradScalerOptions().init_scale(16).growth_interval(3);
  GradScaler first(model, GradScalerOptions(options).growth_factor(4).backoff_factor(0.25));
  EXPECT_EQ(step(first, kInfinity), 4);
  EXPECT_EQ(step(first, 1), 4);
  EXPECT_EQ(step(first, 1), 4);
  GradScaler second(model);
  second.load_state_dict(nlohmann::json::parse(first.state_dict().dump()));
  EXPECT_EQ(second.get_growth_interval(), 3);
  EXPECT_EQ(step(second, 1), 16);
  EXPECT_EQ(step(first, 1), 16);
  EXPECT_THAT(error_of([&] { second.load_state_dict(nlohmann::json::object()); }),
              HasSubstr("disabled instance"));
  nlohmann::json state = first.state_dict();
  state.erase("_growth_tracker");
  EXPECT_THAT(error_of([&] { second.load_state_dict(state); }), HasSubstr("_growth_tracker"));
  EXPECT_EQ(second.get_scale(), 16);
}

TEST(GradScaler, RefusesWhatPyTorchRefuses) {
  torch::nn::Linear model(3, 2), other(3, 2);
  torch::optim::SGD optimizer(model->parameters(), 0.1), bias({model->bias}, 0.1);
  torch::optim::SGD foreign({model->weight, other->bias}, 0.1);
  GradScaler scaler(model, GradScalerOptions().init_scale(2));
  const auto backward = [&] { scaler.scale(model->forward(torch::ones({4, 3})).sum()).backward(); };
  EXPECT_THAT(error_of([&] { scaler.step(optimizer); }), HasSubstr("nothing was scaled"));
  EXPECT_THAT(error_of([&] { scaler.update(); }), HasSubstr("nothing was scaled"));
  scaler.scale(torch::ones({}));
  EXPECT_THAT(error_of([&] { scaler.step(optimizer); }), HasSubstr("no inf checks were recorded"));
  EXPECT_THAT(error_of([&] { scaler.update(); }),
              HasSubstr("no inf checks were recorded prior to update"));
  backward();
  EXPECT_THAT(error_of([&] { scaler.unscale_(foreign); }),
              ::testing::AllOf(HasSubstr("parameter 1 of group 0 of the optimizer, of shape [2]"),
                               HasSubstr("hand all models")));
  scaler.unscale_(optimizer);
  EXPECT_THAT(error_of([&] { scaler.unscale_(optimizer); }),
              HasSubstr("has already been called on this optimizer"));
  EXPECT_TRUE(torch::equal(model->bias.grad(), torch::full({2}, 4.0)));
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_THAT(error_of([&] { scaler.step(optimizer); }),
              HasSubstr("step() has already been called"));
  EXPECT_THAT(error_of([&] { scaler.unscale_(optimizer); }),
              HasSubstr("being called after step()"));
  // Another backward pass of this step, of which the verdict knows nothing.
  EXPECT_THAT(error_of(backward), HasSubstr("run all backward passes first, or call update()"));
  {
    const torch::NoGradGuard evaluates;
    EXPECT_EQ(scaler.scale(torch::ones({})).item<double>(), 2);
  }
  scaler.update();
  optimizer.zero_grad();
  backward();
  EXPECT_TRUE(scaler.step(bias));
  EXPECT_THAT(error_of([&] { scaler.step(bias, [] { return Tensor(); }); }), HasSubstr("closure"));
  for (const double wrong : {0.0, -1.0, kInfinity}) {
    EXPECT_THAT(error_of([&] { scaler.update(wrong); }), HasSubstr("the new scale"));
  }
  scaler.update(32);
  EXPECT_EQ(scaler.get_scale(), 32);
  EXPECT_THAT(error_of([&] { GradScaler(model, GradScalerOptions().growth_factor(1)); }),
              HasSubstr("growth_factor is 1"));
  EXPECT_THAT(error_of([&] { GradScaler(model, GradScalerOptions().growth_interval(0)); }),
              HasSubstr("growth_interval is 0"));
  EXPECT_THAT(error_of([&] { GradScaler(std::vector<const ParallelModel*>{}); }),
              HasSubstr("no models"));
}

/// Half precision holds what scaling saves only as long as it is scaled.
TEST(GradScaler, GradientsOfHalfPrecisionAreRefused) {
  torch::nn::Linear model(3, 2);
  model->to(torch::kHalf);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  GradScaler scaler(model);
  scaler.scale(model->forward(torch::ones({4, 3}, torch::kHalf)).sum() * 1e-4).backward();
  EXPECT_THAT(error_of([&] { scaler.unscale_(optimizer); }),
              HasSubstr("attempting to unscale float16 gradients: that of weight"));
}

TEST(GradScaler, DisabledItDoesNothing) {
  torch::nn::Linear model(3, 2);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  GradScaler scaler(model, GradScalerOptions().enabled(false));
  const Tensor loss = model->forward(torch::ones({4, 3})).sum() * kInfinity;
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  loss.backward();
  scaler.unscale_(optimizer);
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_TRUE(scaler.step(optimizer, [&] { return loss; }));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 1);
  EXPECT_TRUE(scaler.state_dict().empty());
  EXPECT_FALSE(torch::isfinite(model->bias).all().item<bool>());
}

/// Rows of a table that were not looked up have no gradient; a row that was, twice.
TEST(GradScaler, TakesSparseGradients) {
  torch::nn::Embedding table(torch::nn::EmbeddingOptions(5, 2).sparse(true));
  torch::optim::SGD optimizer(table->parameters(), 0.5);
  GradScaler scaler(table, GradScalerOptions().init_scale(8));
  const Tensor before = table->weight.detach().clone();
  scaler.scale(table->forward(torch::tensor({1, 1, 3})).sum()).backward();
  scaler.unscale_(optimizer);
  EXPECT_TRUE(scaler.step(optimizer));
  scaler.update();
  const Tensor expected = torch::tensor({0.0, 1.0, 0.0, 0.5, 0.0}).unsqueeze(1);
  EXPECT_TRUE(torch::allclose(before - table->weight, expected.expand({5, 2})));
}

/// Its verdict would be this rank's alone.
TEST(GradScaler, AParallelModelIsHandedOverAsSuch) {
  run_as_threads(2, [](World world) {
    for (const char* config : {R"({"model_parallelism": {"tensor_parallel_size": 2}})", "{}"}) {
      torch::nn::Sequential model = small_model();
      const ParallelModel parallel = initialize(model, Config::parse(config), in(world));
      EXPECT_THAT(error_of([&] { GradScaler scaler(model); }), HasSubstr("scaler(parallel)"));
    }
  });
}

}  // namespace
}  // namespace oslo::test
