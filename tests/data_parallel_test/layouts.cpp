// Parameters whose gradients and states lie otherwise than they do: who reads which layout.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>

#include "checkpoint/resume/stepped_parameters.h"
#include "checkpoint/state/model_state.h"
#include "parallelizers/data/clip_grad_norm.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"
#include "tests/data_parallel_test/net.h"
#include "tests/support/error_of.h"

namespace layouts_test {
namespace {

using data_parallel_test::random;
using oslo::LayoutPtr;
using oslo::MPU;
using oslo::Placement;
using oslo::World;
using torch::Tensor;

LayoutPtr lies(const oslo::MeshPtr& mesh, const Placement& placement, const Tensor& whole) {
  return std::make_shared<oslo::Layout>(oslo::make_layout(mesh, {placement}, whole.sizes()));
}

/// Every replica has all of it; of its gradient and its states each has rows of its own: 3 and 2.
struct Shared {
  Shared(const MPU& mpu, Tensor parameter)
      : parameter(std::move(parameter)),
        rows(lies(mpu.mesh({"data"}), Placement::shard(0), this->parameter)) {
    const auto whole = lies(mpu.tensor_mesh(), Placement::replicate(), this->parameter);
    mark_parameter(this->parameter, whole, "w");
    set_layouts(this->parameter, rows, rows);
  }
  Tensor parameter;
  LayoutPtr rows;
};

TEST(ParameterLayouts, NormsReadTheGradients) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world);
    const Shared one(mpu, torch::zeros({5, 3}, torch::kDouble));
    const Tensor whole = random({5, 3}, 1);
    one.parameter.mutable_grad() =
        oslo::marked_gradient(oslo::local_part(whole, *one.rows).clone(), one.parameter);
    const double norm = whole.norm().item<double>();
    EXPECT_NEAR(oslo::clip_grad_norm_({one.parameter}, norm / 2), norm, 1e-12);
    EXPECT_EQ(one.parameter.grad().size(0), world.rank() == 0 ? 3 : 2);
    EXPECT_TRUE(torch::allclose(oslo::full_tensor(one.parameter.grad()), whole / 2, 1e-5));
  });
}

TEST(ParameterLayouts, CheckpointsOfAnOptimizerReadTheStates) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world);
    const Shared one(mpu, torch::zeros({5, 3}, torch::kDouble));
    const oslo::ModelState::Tensor entry = oslo::state_entry("w", one.parameter);
    EXPECT_EQ(entry.layout, nullptr);
    EXPECT_EQ(entry.state_layout, one.rows);
    const Tensor whole = random({5, 3}, 1), part = oslo::local_part(whole, *one.rows);
    EXPECT_TRUE(torch::equal(oslo::part_of_state(whole, entry, "momentum"), part));
    const Tensor state = oslo::state_like(part, one.parameter);
    EXPECT_EQ(oslo::layout(state), one.rows);
    EXPECT_TRUE(torch::equal(oslo::part_of_state(state, entry, "momentum"), part));
    EXPECT_TRUE(torch::equal(oslo::full_tensor(state), whole));
  });
}

TEST(ParameterLayouts, AnExchangeThatNoStrategyMakesIsRefused) {
  oslo::run_as_threads(2, [](World world) {
    const MPU mpu(world);
    torch::nn::Linear linear(torch::nn::LinearOptions(3, 5).bias(false));
    const Shared shared(mpu, linear->weight);
    EXPECT_EQ(oslo::test::error_of([&] {
                oslo::DistributedDataParallel<torch::nn::Linear> ddp(linear, mpu.data_group());
              }),
              "no strategy leaves the gradient of w as (dim 0: 3+2), of a parameter that lies as "
              "(whole); lay both alike (oslo::set_layouts)");
  });
}

}  // namespace
}  // namespace layouts_test
