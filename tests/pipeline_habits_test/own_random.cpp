// Generators and counters of the program's own, which nobody can give a stream for each
// micro-batch: as on one device where a rank has one stage, told by name where it has several.
#include <gmock/gmock.h>

#include <ATen/CPUGeneratorImpl.h>

#include <random>

#include "tests/pipeline_habits_test/habit_net.h"

namespace oslo::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

/// What the program keeps beside the net, one for each rank.
struct Own {
  std::mt19937 engine{5};
  int calls = 0;
  at::Generator generator = at::detail::createCPUGenerator(5);
};
using OwnHabit = std::function<Tensor(HabitNetImpl& net, Own& own, const Tensors& micro)>;

/// The losses of some steps, or what the first one threw, by rank; beside them one device's.
struct Ran {
  std::vector<std::string> errors;
  std::vector<double> losses, expected;
};

Ran run(const char* kind, const OwnHabit& habit) {
  constexpr int kMicroBatches = 4;
  Ran ran{std::vector<std::string>(2), {}, {}};
  run_as_threads(
      2,
      [&](World world) {
        at::set_num_threads(1);
        HabitNet net = make_seeded(7, [] { return HabitNet(); }),
                 alone = make_seeded(7, [] { return HabitNet(); });
        pipeline_parity::make_double(*net);
        pipeline_parity::make_double(*alone);
        const Tensors batch = make_seeded(8, [] { return habit_batch(); });
        InitializeOptions how;
        how.world = world;
        how.example_inputs = [&] {
          Own own;
          habit(*net, own, batch);
        };
        const auto parallel = initialize(net, Config::parse(habit_config({1, 1, 2}, kind)), how);
        PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(kMicroBatches));
        Own own, of_alone;
        for (int step = 0; step < 3; ++step) {
          double expected = 0;
          for (const Tensors& micro : pipeline_parity::divided(batch, kMicroBatches)) {
            expected += habit(*alone, of_alone, micro).item<double>() / kMicroBatches;
          }
          try {
            const auto result = schedule.forward_backward_step(
                batch, [&](const Tensors& micro) { return habit(*net, own, micro); });
            if (world.rank() != 0) continue;
            ran.losses.push_back(result.loss.item<double>());
            ran.expected.push_back(expected);
          } catch (const Error& error) {
            ran.errors[world.rank()] = error.what();
            return;
          }
        }
      },
      std::chrono::seconds(20));
  return ran;
}

void expect_as_on_one_device(const Ran& ran) {
  EXPECT_THAT(ran.errors, Each(std::string()));
  ASSERT_EQ(ran.losses.size(), 3);
  for (size_t i = 0; i < ran.losses.size(); ++i) EXPECT_NEAR(ran.losses[i], ran.expected[i], 1e-9);
}

/// What is skipped at random, by an engine or by a count that goes on in the middle of the forward.
TEST(PipelineOwnRandom, ParametersThatAreSkippedInTheMiddleOfAForward) {
  const auto dropping = [](const std::function<bool(Own & own)>& keeps) -> OwnHabit {
    return [keeps](HabitNetImpl& net, Own& own, const Tensors& micro) {
      Tensor h = micro[0];
      for (const auto& layer : net.layers) {
        h = torch::tanh(torch::matmul(h, layer->weight.t()));
        if (keeps(own)) h = h + layer->bias;
      }
      return error_of_rows(h, micro[1]);
    };
  };
  const std::vector<OwnHabit> habits{dropping([](Own& own) { return own.engine() % 2 == 0; }),
                                     dropping([](Own& own) { return own.calls++ % 3 == 0; })};
  for (const OwnHabit& habit : habits) {
    for (const char* kind : {"1f1b", "gpipe"}) expect_as_on_one_device(run(kind, habit));
    for (const char* kind : {"zbv", "interleaved", "dualpipev"}) {
      EXPECT_THAT(run(kind, habit).errors,
                  Each(AllOf(HasSubstr("the forward of micro-batch"),
                             HasSubstr("used other parameters"), HasSubstr("1f1b"))))
          << kind;
    }
  }
}

/// What is decided at the top of the forward is one device's under every kind: micro-batches begin
/// in order.
TEST(PipelineOwnRandom, LayersThatAreChosenAtTheTopOfAForward) {
  for (const char* kind : {"1f1b", "zbv", "interleaved", "dualpipev"}) {
    SCOPED_TRACE(kind);
    expect_as_on_one_device(run(kind, [](HabitNetImpl& net, Own& own, const Tensors& micro) {
      std::vector<bool> keeps;
      for (int i = 0; i < kLayers; ++i) keeps.push_back(own.engine() % 2 == 0);
      const Tensor noise = at::randn({kWide}, own.generator, torch::kDouble);
      Tensor h = micro[0] + noise;
      for (int i = 0; i < kLayers; ++i) {
        if (keeps[i]) h = h + torch::tanh(net.layer(i, h));
      }
      return error_of_rows(h * net.layers[3]->bias, micro[1]);
    }));
  }
}

TEST(PipelineOwnRandom, AGeneratorThatAnOperatorOnAStagesValueDrawsFrom) {
  const OwnHabit habit = [](HabitNetImpl& net, Own& own, const Tensors& micro) {
    Tensor h = torch::tanh(net.layer(0, micro[0]));
    h = h * at::bernoulli(torch::full_like(h, 0.7), own.generator);
    h = h + 0.1 * torch::empty_like(h).normal_(0, 1, own.generator);
    return error_of_rows(net.layer(3, net.layer(2, h)), micro[1]);
  };
  for (const char* kind : {"1f1b", "gpipe"}) expect_as_on_one_device(run(kind, habit));
  for (const char* kind : {"zbv", "interleaved", "dualpipev"}) {
    EXPECT_THAT(run(kind, habit).errors,
                Each(AllOf(HasSubstr("aten::bernoulli on pipeline"),
                           HasSubstr("a generator of the program's own"), HasSubstr("1f1b"))))
        << kind;
  }
}

}  // namespace
}  // namespace oslo::test
