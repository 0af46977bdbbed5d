// The config's activation_checkpoint.offload over tensor, pipeline and data ranks, which share the
// simulated device as ranks share a GPU: the numbers of plain LibTorch on one device, and no rank
// holds more than without it.
#include <ATen/ATen.h>
#include <c10/core/AutogradState.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <vector>

#include "mpu/transport/backends/staged_backend.h"
#include "parallelizers/placement/carrier/graph/set_data.h"
#include "tests/lazy_device_test/late_operators.h"
#include "tests/lazy_device_test/late_tensors.h"
#include "tests/support/errors_of.h"
#include "tests/support/initialized.h"
#include "tests/support/seeded.h"
#include "tests/support/shared_memory_group.h"

namespace oslo::offloaded_ranks_test {
namespace {

using at::Tensor;
using test::kLazy;

/// Activations are larger than what is too small to be moved, and widths differ.
constexpr int64_t kWidth = 520, kRows = 506, kLayers = 5;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t inner)
      : up(register_module("up", torch::nn::Linear(kWidth, inner))),
        down(register_module("down", torch::nn::Linear(inner, kWidth))) {}
  Tensor forward(const Tensor& x) { return x + down(torch::sin(up(x))); }

  torch::nn::Linear up, down;
};
TORCH_MODULE(Block);

struct NetImpl : torch::nn::Module {
  NetImpl() {
    for (int64_t i = 0; i < kLayers; ++i) h->push_back(Block(kWidth + 13 * i));
  }
  Tensor forward(Tensor x) {
    for (const auto& block : *h) x = block->as<Block>()->forward(x);
    return x;
  }
  torch::nn::ModuleList h{register_module("h", torch::nn::ModuleList())};
};
TORCH_MODULE(Net);

Net make() {
  return test::make_seeded(3, [] { return Net(); });
}

constexpr int kSteps = 2, kMicroBatches = 3;

struct Grid {
  int tensor = 1, pipeline = 1, data = 1;
  int ranks() const { return tensor * pipeline * data; }
};

/// So many rows that the parts of a rank's micro-batch are large enough to be moved.
Tensor batch_of(const Grid& grid, int step) {
  const int64_t parts = grid.tensor * grid.data * (grid.pipeline > 1 ? kMicroBatches : 1);
  return test::make_seeded(20 + step, [&] {
    return torch::randn({parts * kRows + 31 * step, kWidth});
  });
}

/// What is the same on one device: losses, and the weights after all steps.
struct Numbers {
  std::vector<double> losses;
  std::vector<Tensor> weights;
};

Numbers expected(const Grid& grid) {
  Net model = make();
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.5));
  Numbers numbers;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const Tensor loss = model->forward(batch_of(grid, step)).square().mean();
    loss.backward();
    optimizer.step();
    numbers.losses.push_back(loss.item<double>());
  }
  for (const Tensor& weight : model->parameters()) numbers.weights.push_back(weight.detach());
  return numbers;
}

std::string config_of(const Grid& grid, const std::string& offload) {
  return c10::str(R"({"model_parallelism": {"enable": true, "tensor_parallel_size": )", grid.tensor,
                  R"(, "pipeline_parallel_size": )", grid.pipeline,
                  R"(}, "plan": {"h.*.up": "column", "h.*.down": "row"}, )",
                  R"("activation_checkpoint": {)", offload, "}}");
}

/// Tensors of the simulated device go by way of the host's memory, as those of a GPU that ranks
/// share.
void carry_device_tensors(const std::shared_ptr<Group>& group,
                          const c10::intrusive_ptr<c10d::Store>& store) {
  if (group->size() == 1) return;
  const std::string name = c10::str(group->name(), " ", group->ranks());
  const auto own = c10::make_intrusive<c10d::PrefixStore>(name, store);
  group->process_group()->setBackend(
      c10::kPrivateUse1, c10d::ProcessGroup::BackendType::NCCL,
      c10::make_intrusive<StagedBackend>(
          group->rank(), group->size(),
          make_shared_memory_backend(own, group->rank(), group->size(), test::shm_options(name))));
}

/// What `model->to(device)` does. LibTorch's set_data itself does not know the simulated device.
void to_device(const Net& model) {
  const torch::NoGradGuard no_grad;
  for (const Tensor& parameter : model->parameters()) {
    const auto taken = data_to_take(parameter, parameter.to(kLazy));
    if (!taken) continue;
    parameter.unsafeGetTensorImpl()->shallow_copy_from(taken->getIntrusivePtr());
    torch::autograd::impl::set_grad_accumulator(parameter, {});  // it was the other device's
  }
}

struct Outcome {
  std::vector<std::string> errors;  ///< by rank
  /// Bytes of each rank beside its weights, in the step that takes less of them: the transport's
  /// threads let go of what they moved a little late, at times.
  std::vector<int64_t> most;
};

/// Trains on `grid`, and compares with `plain`.
Outcome train(const Grid& grid, const std::string& offload, const Numbers& plain) {
  Outcome outcome;
  outcome.most.resize(grid.ranks());
  const auto store = c10::make_intrusive<c10d::HashStore>();
  outcome.errors = test::errors_of(grid.ranks(), [&](World world) {
    at::set_num_threads(1);
    // Ranks are threads: their backward passes would wait for each other on the device's one.
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
    const c10::StreamGuard stream(
        c10::impl::VirtualGuardImpl(c10::kPrivateUse1).getStreamFromGlobalPool(kLazy));
    Net model = make();
    ParallelModel parallel =
        initialize(model, Config::parse(config_of(grid, offload)), test::in(world));
    const MPU& mpu = parallel.mpu();
    for (const auto& group : {mpu.tensor_group(), mpu.pipeline_group(), mpu.data_group()}) {
      carry_device_tensors(group, store);
    }
    to_device(model);
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.5));
    std::optional<DistributedDataParallel<Net>> ddp;
    if (grid.pipeline == 1) ddp.emplace(model, mpu.data_group());
    std::optional<PipelineSchedule> schedule;
    if (grid.pipeline > 1) {
      schedule.emplace(parallel, PipelineOptions().num_microbatches(kMicroBatches));
    }
    int64_t weights = 0;
    for (const Tensor& parameter : model->parameters()) {
      if (is_here(parameter)) weights += static_cast<int64_t>(local_tensor(parameter).nbytes());
    }
    int64_t most = 0;
    test::after_operators([&] {
      test::finish_all_streams();
      most = std::max(most, test::device_bytes_of_this_thread() - weights);
    });
    int64_t& least_most = outcome.most[world.rank()];
    least_most = std::numeric_limits<int64_t>::max();
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      most = 0;
      const Tensor rows = batch_of(grid, step);
      const Tensor own = rows.tensor_split(grid.data)[mpu.get_data_parallel_rank()];
      const double share = static_cast<double>(own.size(0)) * grid.data / rows.size(0);
      Tensor loss;
      if (schedule) {
        loss = schedule
                   ->forward_backward_step({test::late(own.contiguous())},
                                           [&](const std::vector<Tensor>& micro) {
                                             return model->forward(micro[0]).square().mean();
                                           })
                   .loss;
        ASSERT_EQ(share, 1);
      } else {
        loss = ddp->forward(test::late(own.contiguous())).square().mean() * share;
        loss.backward();
      }
      optimizer.step();
      least_most = std::min(least_most, most);
      const Tensor seen = test::seen(local_tensor(loss.detach()));
      const double sum = mpu.data_group()->all_reduce(seen).item<double>();
      EXPECT_NEAR(sum / grid.data, plain.losses[step], 1e-4 * plain.losses[step]) << step;
    }
    test::after_operators(nullptr);
    for (size_t i = 0; i < plain.weights.size(); ++i) {
      const Tensor weight = model->parameters()[i];
      if (!is_here(weight)) continue;
      const LayoutPtr of = layout(weight);
      const Tensor wanted = of ? local_part(plain.weights[i], *of) : plain.weights[i];
      EXPECT_TRUE(test::seen(local_tensor(weight.detach())).allclose(wanted, 1e-4, 1e-6)) << i;
    }
  });
  return outcome;
}

class OffloadedRanks : public testing::TestWithParam<Grid> {};

TEST_P(OffloadedRanks, TrainAsOnOneDeviceAndHoldNoMore) {
  const Numbers plain = expected(GetParam());
  const Outcome all_kept = train(GetParam(), R"("offload": false)", plain);
  EXPECT_THAT(all_kept.errors, testing::Each(""));
  const Outcome moved = train(GetParam(), R"("offload": true, "offload_ahead": 1)", plain);
  EXPECT_THAT(moved.errors, testing::Each(""));
  for (size_t rank = 0; rank < moved.most.size(); ++rank) {
    EXPECT_LT(moved.most[rank], all_kept.most[rank]) << rank;
    EXPECT_GT(moved.most[rank], 0) << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Over, OffloadedRanks,
                         testing::Values(Grid{2, 1, 1}, Grid{1, 2, 1}, Grid{1, 1, 2}, Grid{2, 2, 1},
                                         Grid{2, 1, 2}),
                         [](const auto& info) {
                           return c10::str("tensor_", info.param.tensor, "_pipeline_",
                                           info.param.pipeline, "_data_", info.param.data);
                         });

}  // namespace
}  // namespace oslo::offloaded_ranks_test
