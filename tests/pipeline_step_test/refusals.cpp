// What a step on pipeline stages refuses, and what the other ranks hear of a rank that throws.
#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

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

/// What each rank's body throws, on four layers in two stages.
std::vector<std::string> refused(
    const std::function<void(const ParallelModel&, torch::nn::Sequential&)>& body, int ranks = 2,
    std::chrono::milliseconds timeout = std::chrono::minutes(2)) {
  std::vector<std::string> errors(ranks);
  run_as_threads(
      ranks,
      [&](World world) {
        auto model = four_layers();
        InitializeOptions how;
        how.world = world;
        const ParallelModel parallel = initialize(
            model, Config::parse(R"({"model_parallelism": {"pipeline_parallel_size": 2}})"), how);
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
  EXPECT_THAT(error({x}, 5, "1f1b"), Each(AllOf(HasSubstr("4 rows"), HasSubstr("into 5"))));
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

TEST(PipelineSchedule, AStorageReadOnTheWrongStageIsRefused) {
  const auto errors = refused([](const ParallelModel& parallel, torch::nn::Sequential& model) {
    step(parallel, {torch::ones({4, 3})}, [&](const Tensors& micro) {
      const Tensor y = model->forward(micro[0]);
      static_cast<void>(y.data_ptr<float>());
      return y.mean();
    });
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("micro-batch 0"), HasSubstr("pipeline stage"))));
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
              AllOf(HasSubstr("pipeline stage 0, backward of micro-batch 1"),
                    HasSubstr("the first to fail was pipeline stage 1, forward of micro-batch 1"),
                    HasSubstr("no more data")));
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
