// Buffers that a forward reads and writes operator by operator (running averages, counters). Where
// a rank has several stages, several micro-batches are in the middle of the forward: each has to
// find what the one before it left.
#include <gmock/gmock.h>

#include "tests/pipeline_habits_test/habit_net.h"
#include "tests/support/error_of.h"

namespace oslo::test {
namespace {

struct AveragedNetImpl : HabitNetImpl {
  AveragedNetImpl() {
    average = register_buffer("average", torch::ones(kWide));
    calls = register_buffer("calls", torch::zeros(1, torch::kLong));
  }
  void move_average(const Tensor& h) {
    const torch::NoGradGuard no_grad;
    average.mul_(0.9);  // which needs nothing of another stage
    average.add_(h.mean(0), 0.1);
  }
  Tensor average, calls;
};
TORCH_MODULE(AveragedNet);

using AveragedHabit = std::function<Tensor(AveragedNetImpl& net, const Tensors& micro)>;

/// The buffers are on the last stage.
std::string averaged_config(const Grid& grid, const std::string& kind) {
  const std::string config = habit_config(grid, kind);
  const int last = grid.pipeline * pipeline::default_chunks(kind) - 1;
  return c10::str(config.substr(0, config.size() - 2), ", \"average\": ", last,
                  ", \"calls\": ", last, "}}");
}

void expect_averaged(const AveragedHabit& habit, bool may_refuse = false) {
  for (const std::string& kind : pipeline::schedule_kinds()) {
    for (const bool example : {true, false}) {
      SCOPED_TRACE(c10::str(kind, example ? " with an example" : ""));
      Trial trial{{1, 1, 2}, kind};
      trial.config = averaged_config(trial.grid, kind);
      trial.batch_coupled = true;
      trial.evaluates = true;
      trial.example = example;
      trial.may_refuse = may_refuse && pipeline::default_chunks(kind) > 1;
      expect_parity(
          trial, [] { return AveragedNet(); }, [](int) { return habit_batch(); },
          [&](auto& net, const Tensors& micro) { return habit(*net, micro); });
    }
  }
}

/// What decays needs nothing of the stage before, what is added comes from there.
TEST(PipelineWrittenBuffers, AnAverageOfTheLayerBefore) {
  expect_averaged([](AveragedNetImpl& net, const Tensors& micro) {
    const Tensor h = torch::tanh(net.layer(2, torch::tanh(net.layer(0, micro[0]))));
    if (net.is_training()) net.move_average(h);
    return error_of_rows(net.layer(3, h) - net.average.clone(), micro[1]);
  });
}

/// Of a buffer that nothing writes, a copy goes to a stage that did not have it.
TEST(PipelineWrittenBuffers, ACopyOfABufferOnAnotherStage) {
  expect_averaged([](AveragedNetImpl& net, const Tensors& micro) {
    const Tensor late = net.layer(3, net.layer(0, micro[0])) * net.layers[0]->bias.clone();
    return error_of_rows(late - net.average.clone() * net.layers[1]->bias, micro[1]);
  });
}

/// Each call sees how many there were, wherever in the forward it looks.
TEST(PipelineWrittenBuffers, ACounterAtBothEnds) {
  expect_averaged([](AveragedNetImpl& net, const Tensors& micro) {
    net.calls += 1;
    const Tensor h = torch::tanh(net.layer(3, torch::tanh(net.layer(0, micro[0]))));
    const Tensor y = h * net.calls.to(torch::kDouble);
    net.calls += 1;
    return error_of_rows(y, micro[1]);
  });
}

/// As in a codebook, whose norms may come before what they are compared with: the rank waits there,
/// in its first stage, for what the micro-batch before writes in its last one. Where stages go down
/// the ranks and back up all would wait for each other, which is said before anything is sent.
TEST(PipelineWrittenBuffers, AnAverageThatIsReadAtTheBeginning) {
  expect_averaged(
      [](AveragedNetImpl& net, const Tensors& micro) {
        const Tensor scale = 1 + net.average.pow(2);
        Tensor y = micro[0];
        for (int i = 0; i < kLayers; ++i) y = torch::tanh(net.layer(i, y));
        if (net.is_training()) net.move_average(y);
        return error_of_rows(y * scale, micro[1]);
      },
      /*may_refuse=*/true);
}

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

/// What a step throws on each rank where a rank has two stages.
std::vector<std::string> errors_of_averaged(const AveragedHabit& habit) {
  std::vector<std::string> errors(2);
  run_as_threads(
      2,
      [&](World world) {
        at::set_num_threads(1);
        AveragedNet net = make_seeded(7, [] { return AveragedNet(); });
        InitializeOptions how;
        how.world = world;
        const auto config = Config::parse(averaged_config({1, 1, 2}, "interleaved"));
        const ParallelModel parallel = initialize(net, config, how);
        PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(4));
        errors[world.rank()] = error_of([&] {
          schedule.forward_backward_step({torch::ones({8, kWide})},
                                         [&](const Tensors& micro) { return habit(*net, micro); });
        });
      },
      std::chrono::seconds(2));
  return errors;
}

/// The run on shapes reads zeros, and does not see the write.
TEST(PipelineWrittenBuffers, AWriteThatComesTooLateIsRefused) {
  EXPECT_THAT(errors_of_averaged([](AveragedNetImpl& net, const Tensors& micro) {
                const Tensor scale = 1 + net.average.pow(2);
                const Tensor h = net.layer(2, net.layer(0, micro[0]));
                if (h.sum().item<double>() != 0) net.move_average(h);
                return (net.layer(3, h) * scale).mean();
              }),
              Each(AllOf(HasSubstr("average on pipeline stage 3 is written by the forward of"),
                         HasSubstr("such as 1f1b"))));
}

}  // namespace
}  // namespace oslo::test
