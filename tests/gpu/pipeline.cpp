// A pipeline's steps beside one device: stages that share a GPU, and stages with one each where
// there are two. In V-shaped schedules a rank takes messages in another order than they were sent.
#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>

#include <string>
#include <tuple>

#include "benchmarks/ranks/model.h"
#include "tests/gpu/gpu.h"
#include "tests/support/pipeline_parity.h"

namespace oslo {
namespace {

/// Device and schedule.
class PipelineOnGpus : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

TEST_P(PipelineOnGpus, EqualsOneDevice) {
  const std::string device_name = std::get<0>(GetParam()), kind = std::get<1>(GetParam());
  OSLO_NEEDS_GPUS(device_name == "cuda" ? 2 : 1);
  run_as_threads(2, [&](World world) {
    const c10::Device device = local_device(world, device_name);
    const c10::StreamGuard stream(
        c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(device));
    const auto make = [&] {
      bench::Gpt model(61, 12, 48, 6, 4);
      model->to(device, at::kDouble);
      return model;
    };
    bench::Gpt reference = make(), model = make();
    InitializeOptions how;
    how.world = world;
    const pipeline_parity::Grid grid{1, 1, 2};
    ParallelModel parallel =
        initialize(model, Config::parse(pipeline_parity::config_of(grid, kind)), how);
    PipelineSchedule schedule(parallel, PipelineOptions().num_microbatches(4).kind(kind));
    const auto tokens = (at::arange(96, at::device(device)) * 7).remainder(61).view({8, 12});
    const auto loss_of = [](bench::Gpt& gpt, const std::vector<at::Tensor>& batch) {
      return torch::nn::functional::cross_entropy(gpt->forward(batch[0]).flatten(0, 1),
                                                  batch[1].flatten());
    };
    for (int step = 0; step < 3; ++step) {
      const std::vector<at::Tensor> batch{tokens, (tokens + 3 + step).remainder(61)};
      loss_of(reference, batch).backward();
      schedule.forward_backward_step(batch,
                                     [&](const auto& micro) { return loss_of(model, micro); });
      pipeline_parity::expect_gradients(*model, *reference);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Schedules, PipelineOnGpus,
                         testing::Combine(testing::Values("cuda:0", "cuda"),
                                          testing::Values("1f1b", "interleaved", "zero_bubble",
                                                          "zbv", "dualpipev")),
                         [](const auto& info) {
                           const bool shared = std::get<0>(info.param) == "cuda:0";
                           return std::get<1>(info.param) + (shared ? "_shared" : "_each");
                         });

}  // namespace
}  // namespace oslo
