// K17 of acceptance-2: gradients of weights and biases in 2D, 2.5D and 3D, of models that know
// nothing of it and of layers by hand: one device's, and the same on all ranks that hold the same
// part.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "parallelizers/layers/grid/layer_norm.h"
#include "parallelizers/layers/grid/linear.h"
#include "tests/support/parity.h"

namespace grid_gradients {
namespace {

using torch::Tensor;

Tensor numbers(at::IntArrayRef sizes, double start) {
  return torch::sin(torch::arange(c10::multiply_integers(sizes), torch::kFloat) * 1.7 + start)
      .view(sizes);
}

torch::nn::Sequential layers() {
  return torch::nn::Sequential(torch::nn::Linear(10, 14),
                               torch::nn::LayerNorm(torch::nn::LayerNormOptions({14})),
                               torch::nn::GELU(), torch::nn::Linear(14, 7));
}

/// Bit for bit, along every axis that a parameter is whole on.
void expect_equal_copies(const oslo::MPU& mpu, const torch::nn::Module& model) {
  const oslo::Mesh& mesh = *mpu.tensor_mesh();
  for (const auto& item : model.named_parameters()) {
    const oslo::LayoutPtr lies = oslo::layout(item.value());
    const Tensor part = oslo::local_tensor(item.value().grad()).contiguous();
    for (int axis = 0; axis < mesh.axes(); ++axis) {
      if (lies && !(*lies)[axis].whole()) continue;
      const std::vector<int64_t> one_each(mesh.axis(axis)->size(), 1);
      const Tensor all = mesh.axis(axis)->all_gather(part.unsqueeze(0), 0, one_each);
      for (int64_t rank = 0; rank < all.size(0); ++rank) {
        EXPECT_TRUE(torch::equal(all[rank], part))
            << item.key() << " along " << mesh.axis(axis)->name();
      }
    }
  }
}

struct Mode {
  const char* name;
  int ranks;
  const char* config;
};

void PrintTo(const Mode& mode, std::ostream* out) {
  *out << mode.name;
}

class GridGradients : public ::testing::TestWithParam<Mode> {};

INSTANTIATE_TEST_SUITE_P(
    K17, GridGradients,
    ::testing::Values(
        Mode{"flat", 4, R"({"strict": true, "parallel": {"tensor": {"size": 4, "mode": "2d"}}})"},
        Mode{"deep", 8,
             R"({"strict": true,
                 "parallel": {"tensor": {"size": 8, "mode": "2.5d", "depth": 2}}})"},
        Mode{"cube", 8, R"({"strict": true, "parallel": {"tensor": {"size": 8, "mode": "3d"}}})"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(GridGradients, OfAModelThatKnowsNothingOfIt) {
  oslo::run_as_threads(GetParam().ranks, [](oslo::World world) {
    at::set_num_threads(1);
    auto model = parity::make_seeded(3, layers), reference = parity::make_seeded(3, layers);
    const Tensor x = numbers({6, 10}, 0.3), target = numbers({6, 7}, 0.9);
    const auto loss_of = [&](torch::nn::Sequential& net) {
      return (net->forward(x) - target).pow(2).sum();
    };
    oslo::InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { loss_of(model).backward(); };
    const auto parallel = oslo::initialize(model, oslo::Config::parse(GetParam().config), how);
    loss_of(model).backward();
    loss_of(reference).backward();
    parity::expect_gradients(*model, *reference, {1e-5, 1e-5});
    expect_equal_copies(parallel.mpu(), *model);
  });
}

/// Layers by hand in a model that `initialize` cuts over the same grid: they stay as they are, and
/// nothing is gathered between them and the others.
TEST(GridGradientsByHand, BesideLayersOfThePlan) {
  oslo::run_as_threads(4, [](oslo::World world) {
    at::set_num_threads(1);
    const oslo::MPU mpu(world, oslo::MpuOptions().axes({{"row", 2}, {"column", 2}}));
    auto model = parity::make_seeded(3, [&] {
      return torch::nn::Sequential(oslo::nn::Linear2D(10, 14, mpu), torch::nn::GELU(),
                                   torch::nn::Linear(14, 7));
    });
    auto reference = parity::make_seeded(3, [] {
      return torch::nn::Sequential(torch::nn::Linear(10, 14), torch::nn::GELU(),
                                   torch::nn::Linear(14, 7));
    });
    const Tensor x = numbers({6, 10}, 0.3);
    oslo::InitializeOptions how;
    how.world = world;
    const auto parallel = oslo::initialize(
        model, oslo::Config::parse(R"({"parallel": {"tensor": {"size": 4, "mode": "2d"}}})"), how);
    model->forward(x).pow(2).sum().backward();
    reference->forward(x).pow(2).sum().backward();
    parity::expect_gradients(*model, *reference, {1e-5, 1e-5});
    EXPECT_EQ(parallel.plan().entries.front().module_after, "oslo::nn::Linear2D");
    EXPECT_TRUE(parallel.plan().gathers.empty());
  });
}

/// The weights' gradients are summed over depth.
TEST(GridGradientsByHand, In2p5D) {
  oslo::run_as_threads(8, [](oslo::World world) {
    at::set_num_threads(1);
    const oslo::MPU mpu(world, oslo::MpuOptions().axes({{"depth", 2}, {"row", 2}, {"column", 2}}));
    auto model = parity::make_seeded(3, [&] {
      return torch::nn::Sequential(oslo::nn::Linear2p5D(10, 14, mpu),
                                   oslo::nn::LayerNorm2p5D(14, mpu), torch::nn::GELU(),
                                   oslo::nn::Linear2p5D(14, 7, mpu));
    });
    auto reference = parity::make_seeded(3, layers);
    const Tensor x = numbers({6, 10}, 0.3), target = numbers({6, 7}, 0.9);
    const auto loss_of = [&](torch::nn::Sequential& net) {
      return (net->forward(x) - target).pow(2).sum();
    };
    loss_of(model).backward();
    loss_of(reference).backward();
    parity::expect_gradients(*model, *reference, {1e-5, 1e-5});
    expect_equal_copies(mpu, *model);
  });
}

}  // namespace
}  // namespace grid_gradients
