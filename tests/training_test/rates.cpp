// Learning rates by the number of steps and by a metric, beside what PyTorch 2.11 printed for the
// same settings.
#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>

#include <cmath>
#include <limits>

#include "oslo_cpp/training/rates/group_rates.h"
#include "oslo_cpp/training/rates/reduce_on_plateau.h"
#include "oslo_cpp/training/rates/warmup_schedules.h"
#include "tests/support/error_of.h"
#include "tests/support/initialized.h"
#include "tests/support/parity.h"
#include "tests/support/temporary_directory.h"

namespace oslo::test {
namespace {

using torch::Tensor;

/// Two groups, with rates of 0.2 and 0.03.
torch::optim::SGD make_optimizer() {
  torch::optim::SGD optimizer({torch::zeros({1}, torch::requires_grad())}, 0.2);
  optimizer.add_param_group(
      torch::optim::OptimizerParamGroup({torch::zeros({1}, torch::requires_grad())},
                                        std::make_unique<torch::optim::SGDOptions>(0.03)));
  return optimizer;
}

/// The rate of each optimizer step.
std::vector<double> rates_of(torch::optim::Optimizer& optimizer,
                             torch::optim::LRScheduler& schedule, int steps) {
  std::vector<double> rates;
  for (int step = 0; step < steps; ++step) {
    const std::vector<double> now = group_rates(optimizer);
    EXPECT_NEAR(now[1], now[0] * 0.15, 1e-15);
    rates.push_back(now[0]);
    schedule.step();
  }
  return rates;
}

void expect_rates(const std::vector<double>& seen, const std::vector<double>& expected) {
  ASSERT_EQ(seen.size(), expected.size());
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_NEAR(seen[i], expected[i], 1e-15) << "step " << i;
}

const WarmupOptions kFromQuarter = WarmupOptions().start_factor(0.25);

/// SequentialLR(LinearLR(0.25, 1, 4), CosineAnnealingLR(6, eta_min 0.02)); theirs grows again at
/// the end, ours stays.
TEST(Rates, CosineIsPyTorchs) {
  torch::optim::SGD optimizer = make_optimizer();
  WarmupCosineLR schedule(optimizer, 10, 4, WarmupOptions(kFromQuarter).end_factor(0.1));
  expect_rates(rates_of(optimizer, schedule, 13),
               {0.05, 0.08750000000000001, 0.12500000000000003, 0.16250000000000003, 0.2,
                0.1879422863405995, 0.15500000000000003, 0.11000000000000003, 0.06500000000000003,
                0.03205771365940052, 0.02, 0.02, 0.02});
}

/// The second in line: PolynomialLR(6, power 2).
TEST(Rates, PolynomialIsPyTorchs) {
  torch::optim::SGD optimizer = make_optimizer();
  WarmupPolynomialLR schedule(optimizer, 10, 4, 2.0, kFromQuarter);
  expect_rates(rates_of(optimizer, schedule, 12),
               {0.05, 0.08750000000000001, 0.12500000000000003, 0.16250000000000003, 0.2,
                0.13888888888888892, 0.08888888888888893, 0.05000000000000002, 0.022222222222222233,
                0.005555555555555555, 0.0, 0.0});
}

/// LinearLR(1, 0.1, 6).
TEST(Rates, LinearIsPyTorchs) {
  torch::optim::SGD optimizer = make_optimizer();
  WarmupLinearLR schedule(optimizer, 10, 4, WarmupOptions(kFromQuarter).end_factor(0.1));
  expect_rates(rates_of(optimizer, schedule, 12),
               {0.05, 0.08750000000000001, 0.12500000000000003, 0.16250000000000003, 0.2, 0.17,
                0.14, 0.11000000000000001, 0.08000000000000002, 0.05000000000000001,
                0.020000000000000004, 0.020000000000000004});
}

/// MultiStepLR multiplies where a milestone is reached.
TEST(Rates, MilestonesCountFromTheBeginning) {
  torch::optim::SGD optimizer = make_optimizer();
  WarmupMultiStepLR schedule(optimizer, {3, 5, 5, 7}, 0.5, 2);
  std::vector<double> expected = {0, 0.1};
  double rate = 0.2;
  for (int step = 2; step < 9; ++step) {
    if (step == 3 || step == 7) rate *= 0.5;
    if (step == 5) rate *= 0.25;
    expected.push_back(rate);
  }
  expect_rates(rates_of(optimizer, schedule, 9), expected);
}

/// Without warming up, and warming up to the end; a factor of one's own.
TEST(Rates, TheEndsOfTheRange) {
  torch::optim::SGD optimizer = make_optimizer();
  WarmupLinearLR plain(optimizer, 4);
  expect_rates(rates_of(optimizer, plain, 6), {0.2, 0.15, 0.1, 0.05, 0, 0});
  torch::optim::SGD warming = make_optimizer();
  WarmupCosineLR all(warming, 2, 2);
  expect_rates(rates_of(warming, all, 4), {0, 0.1, 0, 0});
  torch::optim::SGD own = make_optimizer();
  RateSchedule halves(own, [](int64_t step) { return std::pow(0.5, step); });
  expect_rates(rates_of(own, halves, 4), {0.2, 0.1, 0.05, 0.025});
  EXPECT_EQ(halves.steps(), 4);
}

TEST(Rates, AScheduleGoesOnFromItsState) {
  torch::optim::SGD optimizer = make_optimizer();
  WarmupCosineLR schedule(optimizer, 10, 4);
  rates_of(optimizer, schedule, 5);
  const nlohmann::json state = nlohmann::json::parse(schedule.state_dict().dump());
  const std::vector<double> now = group_rates(optimizer);
  const std::vector<double> rest = rates_of(optimizer, schedule, 5);
  // Rates of another start: those of the state hold.
  torch::optim::SGD later({torch::zeros({1}, torch::requires_grad())}, 7.0);
  later.add_param_group(
      torch::optim::OptimizerParamGroup({torch::zeros({1}, torch::requires_grad())}));
  WarmupCosineLR resumed(later, 10, 4);
  resumed.load_state_dict(state);
  set_group_rates(later, now);  // as the optimizer's own state does
  expect_rates(rates_of(later, resumed, 5), rest);
}

TEST(Rates, AStateThatDoesNotFitIsRefused) {
  torch::optim::SGD optimizer = make_optimizer();
  WarmupCosineLR schedule(optimizer, 10, 4);
  WarmupLinearLR other(optimizer, 10, 4);
  const auto of = [&](const nlohmann::json& state) {
    return error_of([&] { schedule.load_state_dict(state); });
  };
  EXPECT_THAT(of(other.state_dict()), testing::HasSubstr("that of a \"WarmupLinearLR\""));
  EXPECT_THAT(of(nlohmann::json::object()), testing::HasSubstr("pass what state_dict() returned"));
  nlohmann::json fewer = schedule.state_dict();
  fewer["base_lrs"] = {0.1};
  EXPECT_THAT(of(fewer), testing::HasSubstr("1 parameter groups, and the optimizer has 2"));
}

TEST(Rates, NumbersThatCannotBeAreRefused) {
  torch::optim::SGD optimizer = make_optimizer();
  const auto cosine = [&](int64_t total, int64_t warmup, const WarmupOptions& options = {}) {
    return error_of([&] { WarmupCosineLR(optimizer, total, warmup, options); });
  };
  EXPECT_THAT(cosine(10, 100), testing::HasSubstr("total_steps 10, warmup_steps 100"));
  EXPECT_THAT(cosine(0, 0), testing::HasSubstr("total_steps 0"));
  EXPECT_THAT(cosine(10, -1), testing::HasSubstr("warmup_steps -1"));
  EXPECT_THAT(cosine(10, 1, WarmupOptions().end_factor(-1)), testing::HasSubstr("end_factor -1"));
  EXPECT_THAT(error_of([&] { WarmupPolynomialLR(optimizer, 10, 1, 0); }),
              testing::HasSubstr("power 0"));
  EXPECT_THAT(error_of([&] {
                WarmupMultiStepLR(optimizer, {5, 3});
              }),
              testing::HasSubstr("[5, 3]"));
  EXPECT_EQ(group_rates(optimizer), (std::vector<double>{0.2, 0.03}));
  WarmupLinearLR schedule(optimizer, 4);
  optimizer.add_param_group(
      torch::optim::OptimizerParamGroup({torch::zeros({1}, torch::requires_grad())}));
  EXPECT_THAT(error_of([&] { schedule.step(); }), testing::HasSubstr("has 3 parameter groups"));
}

/// ReduceLROnPlateau(patience 1, cooldown 2, factor .5, threshold .1, min_lr .1), rate 1.
const std::vector<double> kMetrics = {1,  .95, .92, .91, .85, .9, .9, .9, .9,
                                      .9, NAN, .9,  .5,  .5,  .5, .5, .5};
const std::vector<double> kReduced = {1,   1,    .5,   .5,   .5,   .5, .25, .25, .25,
                                      .25, .125, .125, .125, .125, .1, .1,  .1};
const PlateauOptions kPlateau =
    PlateauOptions().patience(1).cooldown(2).factor(0.5).threshold(0.1).min_lr(0.1);

torch::optim::SGD optimizer_of_one() {
  return torch::optim::SGD({torch::zeros({1}, torch::requires_grad())}, 1.0);
}

TEST(Plateau, IsPyTorchs) {
  torch::optim::SGD optimizer = optimizer_of_one();
  ReduceLROnPlateau plateau(optimizer, kPlateau);
  double before = 1;
  for (size_t i = 0; i < kMetrics.size(); ++i) {
    const bool reduced = plateau.step(kMetrics[i]);
    const double now = plateau.get_last_lr()[0];
    EXPECT_EQ(now, kReduced[i]) << "metric " << i;
    EXPECT_EQ(reduced, now < before);
    before = now;
  }
  EXPECT_EQ(plateau.best(), 0.5);
}

/// The largest metric, counted from where its negative would be.
TEST(Plateau, OfAMetricThatGrows) {
  torch::optim::SGD optimizer = optimizer_of_one();
  ReduceLROnPlateau plateau(
      optimizer,
      PlateauOptions().mode("max").threshold_mode("abs").threshold(0.5).patience(0).factor(0.5));
  const std::vector<double> metrics = {-3, -2.6, -2.4, -1.8, -1.7}, rates = {1, .5, .5, .5, .25};
  for (size_t i = 0; i < metrics.size(); ++i) {
    plateau.step(metrics[i]);
    EXPECT_EQ(plateau.get_last_lr()[0], rates[i]) << "metric " << i;
  }
}

TEST(Plateau, LeavesRatesThatWouldHardlyChange) {
  torch::optim::SGD optimizer = optimizer_of_one();
  ReduceLROnPlateau plateau(optimizer, PlateauOptions().patience(0).factor(0.5).eps(0.25));
  const std::vector<double> rates = {1, .5, .5, .5};
  for (const double rate : rates) {
    plateau.step(1);
    EXPECT_EQ(plateau.get_last_lr()[0], rate);
  }
}

/// From every place, the first included, where the best is infinite.
TEST(Plateau, GoesOnFromItsState) {
  for (size_t stop = 0; stop < kMetrics.size(); ++stop) {
    torch::optim::SGD optimizer = optimizer_of_one();
    ReduceLROnPlateau plateau(optimizer, kPlateau);
    for (size_t i = 0; i < stop; ++i) plateau.step(kMetrics[i]);
    const nlohmann::json state = nlohmann::json::parse(plateau.state_dict().dump());
    ReduceLROnPlateau resumed(optimizer, kPlateau);
    resumed.load_state_dict(state);
    EXPECT_EQ(resumed.best(), plateau.best());
    for (size_t i = stop; i < kMetrics.size(); ++i) {
      resumed.step(kMetrics[i]);
      EXPECT_EQ(resumed.get_last_lr()[0], kReduced[i]) << "metric " << i << " from " << stop;
    }
  }
}

TEST(Plateau, RefusesWhatCannotBe) {
  torch::optim::SGD optimizer = optimizer_of_one();
  const auto of = [&](const PlateauOptions& options) {
    return error_of([&] { ReduceLROnPlateau(optimizer, options); });
  };
  EXPECT_THAT(of(PlateauOptions().mode("least")), testing::HasSubstr("'min' or 'max'"));
  EXPECT_THAT(of(PlateauOptions().factor(1)), testing::HasSubstr("factor 1;"));
  EXPECT_THAT(of(PlateauOptions().patience(-1)), testing::HasSubstr("patience -1"));
  ReduceLROnPlateau least(optimizer), most(optimizer, PlateauOptions().mode("max"));
  EXPECT_THAT(error_of([&] { least.load_state_dict(most.state_dict()); }),
              testing::HasSubstr("of mode \"max\""));
  EXPECT_THAT(error_of([&] {
                least.load_state_dict({{"mode", "min"}});
              }),
              testing::HasSubstr("pass what state_dict() returned"));
}

torch::nn::Linear make_layer() {
  return make_seeded(3, [] {
    torch::nn::Linear layer(5, 7);
    layer->to(torch::kDouble);
    return layer;
  });
}

Tensor loss_of(torch::nn::Linear layer, int step) {
  const Tensor x = torch::sin(torch::arange(15., torch::kDouble) * (1.1 + step)).view({3, 5});
  return layer(x).pow(2).mean();
}

/// Saved and loaded as checkpoints do it, over ranks: the rates, and the weights, of a run that was
/// never interrupted, on one device.
TEST(Rates, ResumeFromACheckpoint) {
  const TemporaryDirectory folder;
  run_as_threads(2, [&](World world) {
    at::set_num_threads(1);
    const Config config = Config::parse(R"({"model_parallelism": {"tensor_parallel_size": 2}})");
    torch::nn::Linear plain = make_layer(), first = make_layer(), second = make_layer();
    torch::optim::AdamW by_hand(plain->parameters(), torch::optim::AdamWOptions(0.1));
    const auto train = [](torch::nn::Linear& layer, torch::optim::Optimizer& optimizer,
                          WarmupCosineLR& schedule, ReduceLROnPlateau& plateau, int from, int to) {
      for (int step = from; step < to; ++step) {
        optimizer.zero_grad();
        loss_of(layer, step).backward();
        optimizer.step();
        schedule.step();
        plateau.step(1.0);
      }
    };
    WarmupCosineLR expected(by_hand, 8, 2);
    ReduceLROnPlateau still(by_hand, PlateauOptions().patience(3));
    train(plain, by_hand, expected, still, 0, 6);
    {
      ParallelModel parallel = oslo::initialize(first, config, in(world));
      torch::optim::AdamW optimizer(first->parameters(), torch::optim::AdamWOptions(0.1));
      WarmupCosineLR schedule(optimizer, 8, 2);
      ReduceLROnPlateau plateau(optimizer, PlateauOptions().patience(3));
      train(first, optimizer, schedule, plateau, 0, 3);
      parallel.save_parallelized(folder.path().string(),
                                 SaveOptions()
                                     .optimizer(&optimizer)
                                     .scheduler(&schedule)
                                     .extra({{"plateau", plateau.state_dict()}}));
    }
    ParallelModel parallel = oslo::initialize(second, config, in(world));
    torch::optim::AdamW optimizer(second->parameters(), torch::optim::AdamWOptions(0.1));
    WarmupCosineLR schedule(optimizer, 8, 2);
    ReduceLROnPlateau plateau(optimizer, PlateauOptions().patience(3));
    nlohmann::json extra;
    parallel.from_parallelized(
        folder.path().string(),
        LoadOptions().optimizer(&optimizer).scheduler(&schedule).extra(&extra));
    plateau.load_state_dict(extra["plateau"]);
    EXPECT_EQ(schedule.steps(), 3);
    train(second, optimizer, schedule, plateau, 3, 6);
    EXPECT_EQ(schedule.get_last_lr(), expected.get_last_lr());
    EXPECT_EQ(plateau.state_dict(), still.state_dict());
    parity::expect_weights(*second, *plain);
  });
}

}  // namespace
}  // namespace oslo::test
