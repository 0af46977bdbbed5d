// A model that is moved after initialize gave its parameters to pipeline stages: values of other
// stages go where it goes.
#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include "parallelizers/placement/carrier/graph/set_data.h"
#include "tests/lazy_device_test/lazy_device.h"
#include "tests/support/errors_of.h"
#include "tests/support/initialized.h"
#include "tests/support/seeded.h"

namespace oslo {
namespace {

using test::kLazy;

struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{register_module("first", torch::nn::Linear(2, 3))};
  torch::nn::Linear second{register_module("second", torch::nn::Linear(3, 2))};
};
TORCH_MODULE(Net);

constexpr const char* kStages =
    R"({"model_parallelism": {"pipeline_parallel_size": 2}, "stages": {"first": 0, "second": 1}})";

/// What `model->to(device)` hands to every parameter. LibTorch's set_data itself does not know the
/// simulated device.
void move(const Net& model, c10::Device device) {
  const torch::NoGradGuard no_grad;
  for (const auto& parameter : model->parameters()) data_to_take(parameter, parameter.to(device));
}

TEST(MovedModel, ValuesOfOtherStagesFollow) {
  const auto errors = test::errors_of(2, [](World world) {
    const Net model = test::make_seeded(3, [] { return Net(); });
    ParallelModel parallel = initialize(model, Config::parse(kStages), test::in(world));
    const ContextPtr context = context_of(parallel.mpu().tensor_mesh());
    EXPECT_EQ(context->device(), c10::kCPU);
    move(model, kLazy);
    EXPECT_EQ(context->device(), kLazy);
    move(model, c10::kCPU);
    EXPECT_EQ(context->device(), c10::kCPU);
    EXPECT_NO_THROW(PipelineSchedule(parallel, PipelineOptions().num_microbatches(2)));
    // Parameters on another device than the model was moved to.
    move(model, kLazy);
    PipelineSchedule(parallel, PipelineOptions().num_microbatches(2));
  });
  EXPECT_THAT(errors, testing::Each(testing::AllOf(testing::HasSubstr("a parameter is on cpu"),
                                                   testing::HasSubstr("model->to(device)"))));
}

}  // namespace
}  // namespace oslo
