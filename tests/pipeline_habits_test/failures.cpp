// What every rank hears of one that fails in the middle of a schedule, or that does something else
// than the others.
#include <gmock/gmock.h>

#include <latch>
#include <new>

#include "tests/pipeline_habits_test/habit_net.h"

namespace oslo::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int kStages = 4;

using Loss = std::function<Tensor(HabitNetImpl& net, const Tensors& micro, int call)>;
using Errors = std::vector<std::string>;

/// What a step throws on each rank, and a second one. `loss` learns how often it was called.
struct Failed {
  Errors first, second;
};

/// Ranks that wait for one that fails, and lives on, are told long before the `limit`.
Failed failed(const char* kind, const std::function<Tensors(int rank)>& batch,
              const std::function<Loss(int rank)>& loss_of,
              std::chrono::seconds limit = std::chrono::minutes(4)) {
  Failed failed{Errors(kStages), Errors(kStages)};
  std::latch told(kStages);  // a rank that fails lives on: its end would tell the others, too
  run_as_threads(
      kStages,
      [&](World world) {
        at::set_num_threads(1);
        const int rank = world.rank();
        HabitNet net = make_seeded(7, [] { return HabitNet(); });
        InitializeOptions how;
        how.world = world;
        const auto config = Config::parse(habit_config({1, 1, kStages}));
        const ParallelModel parallel = initialize(net, config, how);
        PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(3).kind(kind));
        const Loss loss = loss_of(rank);
        int calls = -1;  // the first step begins with one on shapes
        for (Errors* errors : {&failed.first, &failed.second}) {
          try {
            schedule.forward_backward_step(
                batch(rank), [&](const Tensors& micro) { return loss(*net, micro, calls++); });
          } catch (const Error& error) {
            (*errors)[rank] = error.what();
          }
          if (errors == &failed.first) told.arrive_and_wait();
        }
      },
      limit);
  return failed;
}

Tensor through_all(HabitNetImpl& net, const Tensor& x) {
  Tensor h = x;
  for (int i = 0; i < kLayers; ++i) h = torch::tanh(net.layer(i, h));
  return h;
}

Tensors ones(int64_t rows = 6) {
  return {torch::ones({rows, kWide})};
}

Loss mean_of_output() {
  return [](HabitNetImpl& net, const Tensors& micro, int) {
    return through_all(net, micro[0]).mean();
  };
}

const std::vector<std::pair<const char*, int>> kPlaces{
    {"naive", 2}, {"gpipe", 0}, {"1f1b", 3}, {"zero_bubble", 1}};

/// More than any machine has.
void allocate_too_much() {
  torch::empty({int64_t{1} << 50});
}

TEST(PipelineFailures, ARankThatThrowsInAForward) {
  for (const auto& [kind, thrower] : kPlaces) {
    SCOPED_TRACE(c10::str(kind, ", rank ", thrower));
    const Failed seen = failed(
        kind, [](int) { return ones(); },
        [&](int rank) -> Loss {
          if (rank != thrower) return mean_of_output();
          return [](HabitNetImpl& net, const Tensors& micro, int call) {
            if (call == 1) throw std::runtime_error("no more data");
            return through_all(net, micro[0]).mean();
          };
        });
    EXPECT_THAT(
        seen.first,
        Each(AllOf(HasSubstr(c10::str("pipeline stage ", thrower, ", forward of micro-batch 1")),
                   HasSubstr("no more data"))));
    EXPECT_THAT(seen.second, Each(HasSubstr("broke off")));
  }
}

TEST(PipelineFailures, MemoryThatIsNotThereInAForward) {
  const Failed seen = failed(
      "1f1b", [](int) { return ones(); },
      [](int rank) -> Loss {
        return [rank](HabitNetImpl& net, const Tensors& micro, int call) {
          if (rank == 2 && call == 2) allocate_too_much();
          return through_all(net, micro[0]).mean();
        };
      });
  EXPECT_THAT(seen.first, Each(AllOf(HasSubstr("pipeline stage 2, forward of micro-batch 2"),
                                     HasSubstr("allocate"))));
}

TEST(PipelineFailures, MemoryThatIsNotThereInABackward) {
  for (const auto& [kind, stage] : kPlaces) {
    const Failed seen = failed(
        kind, [](int) { return ones(); },
        [&](int) -> Loss {
          return [stage](HabitNetImpl& net, const Tensors& micro, int call) {
            Tensor h = micro[0];
            for (int i = 0; i < kLayers; ++i) {
              h = torch::tanh(net.layer(i, h));
              if (i != stage || call != 1) continue;
              h.register_hook([](const Tensor&) { allocate_too_much(); });
            }
            return h.mean();
          };
        });
    const bool divided = kind == std::string("zero_bubble");
    const std::string pass = divided ? "backward of the input" : "backward";
    EXPECT_THAT(
        seen.first,
        Each(AllOf(HasSubstr(c10::str("pipeline stage ", stage, ", ", pass, " of micro-batch 1")),
                   HasSubstr("allocate"))));
  }
}

/// Its loss needs a value that nobody sends.
TEST(PipelineFailures, ARankWithAnotherLossFunction) {
  const Failed seen = failed(
      "1f1b", [](int) { return ones(); },
      [](int rank) -> Loss {
        if (rank != 3) return mean_of_output();
        return [](HabitNetImpl& net, const Tensors& micro, int call) {
          const Tensor loss = through_all(net, micro[0]).mean();
          return call < 0 ? loss : loss + (net.layer(0, micro[0]) * loss).mean();
        };
      },
      std::chrono::seconds(2));
  EXPECT_THAT(seen.first[3], HasSubstr("pipeline stage 3, forward of micro-batch 0"));
  EXPECT_THAT(seen.first, Each(HasSubstr("pipeline stage")));
}

TEST(PipelineFailures, ARankWithOtherShapes) {
  const Failed seen = failed(
      "1f1b", [](int rank) { return ones(rank == 2 ? 9 : 6); },
      [](int) { return mean_of_output(); });
  EXPECT_THAT(seen.first, Each(AllOf(HasSubstr("pipeline stage 2, forward of micro-batch 0"),
                                     HasSubstr("[2, 6]"), HasSubstr("[3, 6]"))));
}

TEST(PipelineFailures, WhatOneStageCannotGiveIsRefusedOnAll) {
  const auto needing_gradient = [](int) {
    return Tensors{torch::ones({6, kWide}).requires_grad_()};
  };
  EXPECT_THAT(failed("1f1b", needing_gradient, [](int) { return mean_of_output(); }).first,
              Each(AllOf(HasSubstr("tensor 0 of the batch"), HasSubstr("detach()"))));
}

/// It would train nothing, on one device as here.
TEST(PipelineFailures, ALossWithoutAGradientIsToldToAll) {
  const Failed seen = failed(
      "1f1b", [](int) { return ones(); },
      [](int) -> Loss {
        return [](HabitNetImpl& net, const Tensors& micro, int) {
          return through_all(net, micro[0]).detach().mean();
        };
      });
  EXPECT_THAT(seen.first, Each(AllOf(HasSubstr("pipeline stage 3, forward of micro-batch 0"),
                                     HasSubstr("requires no gradient"))));
}

/// Each stage has its part of the graph: the first would find the derivative, the others nothing.
TEST(PipelineFailures, ADerivativeInsideTheForwardIsRefusedOnAll) {
  for (const bool unused : {false, true}) {
    const Failed inner = failed(
        "1f1b", [](int) { return ones(); },
        [unused](int) -> Loss {
          return [unused](HabitNetImpl& net, const Tensors& micro, int call) {
            const Tensor h = net.layer(0, micro[0]);
            const Tensor y = torch::tanh(h);
            if (call < 0) return through_all(net, y).mean();
            const Tensor slope = torch::autograd::grad({y.sum()}, {h}, {}, true, true, unused)[0];
            const Tensor penalty = slope.defined() ? slope.pow(2).mean() : torch::zeros({});
            return through_all(net, y).mean() + penalty;
          };
        });
    EXPECT_THAT(inner.first,
                Each(AllOf(HasSubstr("forward of micro-batch 0"),
                           HasSubstr("torch::autograd::grad"), HasSubstr("pipeline stage 0"))));
  }
}

/// Each stage would have the gradient of its own uses, and nobody their sum.
TEST(PipelineFailures, ALearnableTensorThatIsNotTheModelsIsRefusedOnAll) {
  const Failed outside = failed(
      "1f1b", [](int) { return ones(); },
      [](int) -> Loss {
        const Tensor scale = torch::ones({kWide}).requires_grad_();
        return [scale](HabitNetImpl& net, const Tensors& micro, int call) {
          const Tensor y = through_all(net, micro[0]);
          return call < 0 ? y.mean() : (through_all(net, y * scale) * scale).mean();
        };
      });
  EXPECT_THAT(outside.first, Each(AllOf(HasSubstr("forward of micro-batch 0"),
                                        HasSubstr("ordinary tensor of shape [6]"),
                                        HasSubstr("register_parameter"))));
}

}  // namespace
}  // namespace oslo::test
