// What a step on pipeline stages refuses, and what the other ranks hear of a rank that throws.
#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <atomic>
#include <utility>

#include "tests/support/errors_of.h"
#include "tests/support/pipeline_parity.h"

namespace oslo::test {
namespace {

using pipeline_parity::Tensors;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using torch::Tensor;

torch::nn::Sequential four_layers() {
  return make_seeded(2, [] {
    return torch::nn::Sequential(torch::nn::Linear(3, 3), torch::nn::Linear(3, 3),
                                 torch::nn::Linear(3, 3), torch::nn::Linear(3, 3));
  });
}

/// What each rank's body throws, on four layers and a pipeline of two ranks.
std::vector<std::string> refused(
    const std::function<void(const ParallelModel&, torch::nn::Sequential&)>& body, int ranks = 2,
    std::chrono::milliseconds timeout = std::chrono::minutes(2), const char* kind = "1f1b") {
  std::vector<std::string> errors(ranks);
  run_as_threads(
      ranks,
      [&](World world) {
        auto model = four_layers();
        InitializeOptions how;
        how.world = world;
        const auto config = Config::parse(pipeline_parity::config_of({1, 1, 2}, kind));
        const ParallelModel parallel = initialize(model, config, how);
        try {
          body(parallel, model);
        } catch (const Error& error) {
          errors[world.rank()] = error.what();
        }
      },
      timeout);
  return errors;
}

StepResult step(const ParallelModel& parallel, const Tensors& batch,
                const PipelineSchedule::LossFunction& loss, int micro_batches = 2,
                const char* kind = "1f1b") {
  PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(micro_batches).kind(kind));
  return schedule.forward_backward_step(batch, loss);
}

TEST(PipelineSchedule, WhatCannotBeIsRefusedByNameOnEveryRank) {
  const Tensor x = torch::ones({4, 3});
  const auto error = [&](const Tensors& batch, int micro_batches, const char* kind,
                         bool scalar = true) {
    return refused([&](const ParallelModel& parallel, torch::nn::Sequential& model) {
      step(
          parallel, batch,
          [&](const Tensors& micro) {
            const Tensor y = model->forward(micro[0]);
            return scalar ? y.mean() : y;
          },
          micro_batches, kind);
    });
  };
  EXPECT_THAT(error({x}, 5, "1f1b"), Each(""));  // 4 micro-batches
  EXPECT_THAT(error({x, torch::ones({3})}, 2, "1f1b"),
              Each(AllOf(HasSubstr("tensor 1"), HasSubstr("has 3 rows"), HasSubstr("has 4"))));
  EXPECT_THAT(error({x, torch::ones({})}, 2, "1f1b"), Each(HasSubstr("no dimension 0")));
  EXPECT_THAT(error({}, 2, "1f1b"), Each(HasSubstr("no tensors")));
  EXPECT_THAT(error({x}, 0, "1f1b"), Each(HasSubstr("is 0")));
  EXPECT_THAT(error({x}, 2, "2f2b"), Each(HasSubstr("2f2b")));
  EXPECT_THAT(error({x}, 2, "1f1b", false),
              Each(AllOf(HasSubstr("[2, 3]"), HasSubstr("one number"))));
  EXPECT_THAT(refused([&](const ParallelModel& parallel, torch::nn::Sequential&) {
                step(parallel, {x}, [](const Tensors& micro) { return micro[0].mean(); });
              }),
              Each(HasSubstr("does not depend on the model")));
}

/// Of a value no rank may read it (it would be another one's on every stage), of a parameter only
/// those of its stage. Whoever waits hears of it.
TEST(PipelineSchedule, AStorageReadOnTheWrongStageIsRefused) {
  const auto value = refused([](const ParallelModel& parallel, torch::nn::Sequential& model) {
    step(parallel, {torch::ones({4, 3})}, [&](const Tensors& micro) {
      const Tensor y = model->forward(micro[0]);
      static_cast<void>(y.data_ptr<float>());
      return y.mean();
    });
  });
  EXPECT_THAT(value, Each(AllOf(HasSubstr("forward of micro-batch 0"),
                                HasSubstr("the data of a placed tensor was asked for"),
                                HasSubstr("oslo::local_tensor(t) where oslo::is_here(t)"))));
  const auto parameter = refused(
      [](const ParallelModel& parallel, torch::nn::Sequential& model) {
        PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(2));
        bool shapes = true;  // the first call is on shapes
        schedule.forward_backward_step({torch::ones({4, 3})}, [&](const Tensors& micro) {
          const Tensor& weight = model[0]->as<torch::nn::Linear>()->weight;
          if (!std::exchange(shapes, false)) static_cast<void>(weight.data_ptr<float>());
          return model->forward(micro[0]).mean();
        });
      },
      2, std::chrono::seconds(2));
  EXPECT_THAT(parameter[1], AllOf(HasSubstr("pipeline stage 1, forward of micro-batch 0"),
                                  HasSubstr("another pipeline stage holds it"),
                                  HasSubstr("where oslo::is_here(p)")));
  EXPECT_THAT(parameter[0], AllOf(HasSubstr("the first to fail was pipeline stage 1"),
                                  HasSubstr("another pipeline stage holds it")));
}

TEST(PipelineSchedule, LibTorchsOwnClippingAndBackwardAreRefused) {
  const Tensor x = torch::ones({4, 3});
  for (const double order : {2.0, std::numeric_limits<double>::infinity()}) {
    const auto errors = refused([&](const ParallelModel& parallel, torch::nn::Sequential& model) {
      step(parallel, {x}, [&](const Tensors& micro) { return model->forward(micro[0]).mean(); });
      torch::nn::utils::clip_grad_norm_(model->parameters(), 0.1, order);
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("use parallel.clip_grad_norm_"), HasSubstr("stage"))));
  }
  const auto errors = refused([&](const ParallelModel&, torch::nn::Sequential& model) {
    model[0]->as<torch::nn::Linear>()->forward(x).mean().backward();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("stage 0"), HasSubstr("PipelineSchedule"))));
}

/// The time limit of the groups is short here: nobody sends what the others wait for.
TEST(PipelineSchedule, OthersNameWhatARankThrewInTheMiddle) {
  const auto errors = refused(
      [](const ParallelModel& parallel, torch::nn::Sequential& model) {
        int micro_batch = -1;  // the first call is on shapes
        step(
            parallel, {torch::ones({6, 3})},
            [&](const Tensors& micro) {
              const bool last = parallel.mpu().is_pipeline_last_stage();
              if (last && micro_batch++ == 1) throw std::runtime_error("no more data");
              return model->forward(micro[0]).mean();
            },
            3);
      },
      2, std::chrono::seconds(2));
  EXPECT_THAT(errors[1], AllOf(HasSubstr("pipeline stage 1, forward of micro-batch 1"),
                               HasSubstr("no more data")));
  EXPECT_THAT(errors[0],
              AllOf(HasSubstr("pipeline stage 0, "),
                    HasSubstr("the first to fail was pipeline stage 1, forward of micro-batch 1"),
                    HasSubstr("no more data")));
}

/// The same where forwards of several micro-batches are in the middle, each on its thread.
TEST(PipelineSchedule, AForwardThatThrowsEndsTheOnesThatStopped) {
  std::atomic<int> alive = 0;
  struct Counted {
    explicit Counted(std::atomic<int>& counter) : counter_(counter) { ++counter_; }
    ~Counted() { --counter_; }
    std::atomic<int>& counter_;
  };
  const auto errors = refused(
      [&](const ParallelModel& parallel, torch::nn::Sequential& model) {
        step(
            parallel, {torch::arange(8, torch::kFloat).view({8, 1}).expand({8, 3})},
            [&](const Tensors& micro) {
              const Counted counted(alive);
              const bool last = parallel.mpu().is_pipeline_last_stage();
              const bool throws = last && micro[0][0][0].item<float>() == 2;  // micro-batch 1
              Tensor x = model[0]->as<torch::nn::Linear>()->forward(micro[0]);
              for (int i = 1; i < 4; ++i) {
                x = model[i]->as<torch::nn::Linear>()->forward(x);
                if (throws && i == 3) throw std::runtime_error("no more data");
              }
              return x.mean();
            },
            4, "interleaved");
      },
      2, std::chrono::seconds(2), "interleaved");
  EXPECT_THAT(errors[1], AllOf(HasSubstr("pipeline stage 3, forward of micro-batch 1"),
                               HasSubstr("no more data")));
  EXPECT_THAT(errors[0],
              AllOf(HasSubstr("pipeline stage"),
                    HasSubstr("the first to fail was pipeline stage 3, forward of micro-batch 1"),
                    HasSubstr("no more data")));
  EXPECT_EQ(alive, 0);
}

/// What the first layer keeps in a member is another micro-batch's where the last layer reads it.
TEST(PipelineSchedule, AValueOfAnotherMicroBatchIsRefused) {
  Tensor kept[2];
  const auto errors = [&](const char* kind) {
    return refused(
        [&](const ParallelModel& parallel, torch::nn::Sequential& model) {
          Tensor& member = kept[parallel.mpu().get_pipeline_parallel_rank()];
          step(
              parallel, {torch::ones({8, 3})},
              [&](const Tensors& micro) {
                Tensor x = micro[0];
                for (int i = 0; i < 4; ++i) {
                  x = model[i]->as<torch::nn::Linear>()->forward(x);
                  if (i == 0) member = x;
                }
                return (x + member).mean();
              },
              4, kind);
          member = Tensor();
        },
        2, std::chrono::seconds(2), kind);
  };
  EXPECT_THAT(errors("interleaved"), Each(AllOf(HasSubstr("another micro-batch's forward"),
                                                HasSubstr("local variables"))));
  for (Tensor& each : kept) each = Tensor();
  EXPECT_THAT(errors("1f1b"), Each(""));
}

TEST(PipelineSchedule, AKindWithOtherStagesThanInitializesIsRefused) {
  const auto error = [&](const char* initialized, const PipelineOptions& options) {
    return refused([&](const ParallelModel& parallel,
                       torch::nn::Sequential&) { PipelineSchedule schedule(parallel, options); },
                   2, std::chrono::minutes(2), initialized);
  };
  EXPECT_THAT(error("1f1b", PipelineOptions().num_microbatches(4).kind("zbv")),
              Each(AllOf(HasSubstr("zbv has stages 0 to 3 on ranks [0, 1, 1, 0]"),
                         HasSubstr("gave 2 stages to ranks [0, 1]"),
                         HasSubstr(R"("pipeline_schedule": "zbv", "num_model_chunks": 2)"))));
  EXPECT_THAT(error("interleaved", PipelineOptions().num_microbatches(4).kind("dualpipev")),
              Each(AllOf(HasSubstr("[0, 1, 1, 0]"), HasSubstr("to ranks [0, 1, 0, 1]"))));
  EXPECT_THAT(error("interleaved", PipelineOptions().num_microbatches(4).num_model_chunks(3)),
              Each(HasSubstr("stages 0 to 5")));
  EXPECT_THAT(error("interleaved", PipelineOptions().num_microbatches(4).kind("1f1b")),
              Each(HasSubstr("1f1b has 1 stage a rank, not 2")));
  EXPECT_THAT(error("interleaved", PipelineOptions().num_microbatches(5)),
              Each(HasSubstr("5 micro-batches do not fill 2 equal rounds over 2 ranks")));
  EXPECT_THAT(error("dualpipev", PipelineOptions().num_microbatches(3)),
              Each(HasSubstr("3 micro-batches are fewer")));
  for (const char* kind : {"zbv", "dualpipev"}) {
    const auto options = PipelineOptions().num_microbatches(4).kind(kind);
    EXPECT_THAT(error("zbv", options), Each("")) << kind;
  }
}

/// Ranks that stand at the first look hold up the stage that it is of; ranks that go on behind the
/// second one come too late to what the last stage needs.
TEST(PipelineSchedule, AForwardThatWouldMakeRanksWaitForEverIsRefusedBeforeAnythingIsSent) {
  const auto error = [&](const char* kind) {
    return refused(
        [&](const ParallelModel& parallel, torch::nn::Sequential& model) {
          const auto& ledger = parallel.mpu().pipeline_group()->ledger();
          const auto layer = [&](int i, const Tensor& x) {
            return model[i]->as<torch::nn::Linear>()->forward(x);
          };
          PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(4));
          try {
            schedule.forward_backward_step({torch::ones({4, 3})}, [&](const Tensors& micro) {
              Tensor x = micro[0];
              for (int i = 0; i < 4; ++i) {
                x = layer(i, x);
                if (i >= 2 && x.sum().item<float>() > 1e9) x = x / 2;
              }
              return (x + layer(1, micro[0] + 1)).mean();
            });
          } catch (const Error&) {
            EXPECT_EQ(ledger.total("send").calls, 0);
            throw;
          }
        },
        2, std::chrono::minutes(2), kind);
  };
  EXPECT_THAT(error("zbv"),
              Each(AllOf(HasSubstr("schedule zbv (2 stages a rank) cannot run this model"),
                         HasSubstr("computes on stage 1 what stage 3 needs"))));
  EXPECT_THAT(error("1f1b"), Each(""));
  EXPECT_THAT(error("zero_bubble"), Each(""));
}

TEST(PipelineSchedule, TheScheduleAveragesNotDistributedDataParallel) {
  const auto errors = refused(
      [](const ParallelModel& parallel, torch::nn::Sequential& model) {
        DistributedDataParallel<torch::nn::Sequential> ddp(
            model, parallel.mpu().get_data_parallel_group());
        step(parallel, {torch::ones({4, 3})},
             [&](const Tensors& micro) { return ddp.forward(micro[0]).mean(); });
      },
      4);
  EXPECT_THAT(errors, Each(HasSubstr("call the model there")));
}

}  // namespace
}  // namespace oslo::test
