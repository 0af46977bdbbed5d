// Layers on a grid as modules: words, copies, files, one rank, what is refused.
#include <gmock/gmock.h>

#include <sstream>

#include "parallelizers/data/distributed_data_parallel.h"
#include "parallelizers/deferred/deferred_init.h"
#include "tests/grid_layers_test/grid_layers.h"
#include "tests/support/error_of.h"
#include "tests/support/printed.h"
#include "tests/support/seeded.h"

namespace grid_layers {
namespace {

using oslo::test::error_of;
using oslo::test::make_seeded;
using oslo::test::printed;
using ::testing::HasSubstr;

TEST(GridLayers, PrintWhatTheyHold) {
  on_axes(Flat::axes(), [](const oslo::MPU& mpu) {
    EXPECT_EQ(printed(oslo::nn::Linear2D(8, 12, mpu)),
              "oslo::nn::Linear2D(in_features=8, out_features=12, bias=true, grid=row 2 x column "
              "2, local_weight=[6, 4])");
    EXPECT_EQ(printed(oslo::nn::LayerNorm2D(8, mpu)),
              "oslo::nn::LayerNorm2D(normalized_shape=[8], eps=1e-05, elementwise_affine=true, "
              "grid=row 2 x column 2, local_weight=[2])");
    EXPECT_EQ(printed(oslo::nn::VocabParallelEmbedding2D(
                  torch::nn::EmbeddingOptions(20, 8).padding_idx(-1), mpu)),
              "oslo::nn::VocabParallelEmbedding2D(num_embeddings=20, embedding_dim=8, "
              "padding_idx=19, grid=row 2 x column 2, local_weight=[10, 4])");
    EXPECT_EQ(
        printed(oslo::nn::PatchEmbedding2D(oslo::nn::PatchEmbeddingOptions(16, 4, 3, 8), mpu)),
        "oslo::nn::PatchEmbedding2D(image_size=16, patch_size=4, channels=3, features=8, "
        "grid=row 2 x column 2, local_weight=[2, 3, 4, 4])");
  });
}

TEST(GridLayers, OneSeedGivesTheLayerOfOneDevice) {
  on_axes(Cube::axes(), [](const oslo::MPU& mpu) {
    const auto native = make_seeded(7, [] { return torch::nn::Linear(9, 7); });
    const auto native_table = make_seeded(7, [] { return torch::nn::Embedding(9, 7); });
    auto layer = make_seeded(7, [&] { return oslo::nn::Linear3D(9, 7, mpu); });
    auto table = make_seeded(7, [&] { return oslo::nn::VocabParallelEmbedding3D(9, 7, mpu); });
    const auto equal = [&] {
      EXPECT_TRUE(torch::equal(full_tensor(layer->weight), native->weight));
      EXPECT_TRUE(torch::equal(full_tensor(layer->bias), native->bias));
      EXPECT_TRUE(torch::equal(full_tensor(table->weight), native_table->weight));
    };
    equal();
    {
      const torch::NoGradGuard no_grad;
      for (const Tensor& each : {layer->weight, layer->bias, table->weight}) each.zero_();
    }
    make_seeded(7, [&] { layer->reset_parameters(); });
    make_seeded(7, [&] { table->reset_parameters(); });
    equal();
  });
}

/// A copy trains by itself, and gathers as its original does.
TEST(GridLayers, CloneIsDeepAndCutAlike) {
  on_axes(Flat::axes(), [](const oslo::MPU& mpu) {
    const auto check = [](auto layer, const Tensor& x) {
      using Impl = typename decltype(layer)::ContainedType;
      const auto copy = std::dynamic_pointer_cast<Impl>(layer->clone());
      ASSERT_NE(copy, nullptr);
      ASSERT_TRUE(oslo::is_placed(copy->weight));
      EXPECT_TRUE(copy->weight.is_same(copy->named_parameters()["weight"]));
      EXPECT_TRUE(copy->weight.is_leaf() && copy->weight.requires_grad());
      EXPECT_TRUE(*oslo::layout(copy->weight) == *oslo::layout(layer->weight));
      EXPECT_TRUE(torch::equal(full_tensor(copy->weight), full_tensor(layer->weight)));
      const Tensor y = copy->forward(x), expected = layer->forward(x);
      EXPECT_TRUE(*oslo::layout(y) == *oslo::layout(expected));
      y.sum().backward();
      EXPECT_TRUE(copy->weight.grad().defined());
      EXPECT_FALSE(layer->weight.grad().defined());
      const torch::NoGradGuard no_grad;
      const Tensor before = full_tensor(layer->weight).clone();
      copy->weight.zero_();
      EXPECT_TRUE(torch::equal(full_tensor(layer->weight), before));
    };
    const Tensor x = torch::ones({4, 8}), ids = torch::arange(4);
    check(made<oslo::nn::Linear2D>(8, 12, mpu), x);
    check(made<oslo::nn::Classifier2D>(8, 12, mpu), x);
    check(made<oslo::nn::VocabParallelClassifier2D>(8, 12, mpu), x);
    check(made<oslo::nn::LayerNorm2D>(8, mpu), x);
    check(made<oslo::nn::Embedding2D>(12, 8, mpu), ids);
    check(made<oslo::nn::VocabParallelEmbedding2D>(12, 8, mpu), ids);
    check(oslo::nn::PatchEmbedding2D(oslo::nn::PatchEmbeddingOptions(4, 2, 3, 8), mpu),
          torch::ones({4, 3, 4, 4}));
  });
}

TEST(GridLayers, AFileOfOneDeviceIsLoadedAndAPartIsNotSaved) {
  // The ranks' layers draw from the process's generator, so the layer of the file is made before.
  torch::nn::Linear native(9, 7);
  std::stringstream written;
  torch::save(native, written);
  on_axes(Flat::axes(), [&native, content = written.str()](const oslo::MPU& mpu) {
    std::stringstream file(content), again;
    oslo::nn::Linear2D layer(9, 7, mpu);
    torch::load(layer, file);
    EXPECT_TRUE(torch::equal(full_tensor(layer->weight), native->weight));
    EXPECT_TRUE(torch::equal(full_tensor(layer->bias), native->bias));
    EXPECT_THAT(error_of([&] { torch::save(layer, again); }), HasSubstr("save_parallelized"));
  });
}

TEST(GridLayers, TrainAsOneDevice) {
  on_axes(Flat::axes(), [](const oslo::MPU& mpu) {
    oslo::nn::Linear2D up(7, 9, mpu), down(9, 7, mpu);
    torch::nn::Linear native_up(7, 9), native_down(9, 7);
    fill_alike(up, native_up);
    fill_alike(down, native_down);
    const auto parameters = [](auto& a, auto& b) {
      auto all = a->parameters();
      for (const Tensor& one : b->parameters()) all.push_back(one);
      return all;
    };
    torch::optim::AdamW optimizer(parameters(up, down), torch::optim::AdamWOptions(1e-2));
    torch::optim::AdamW reference(parameters(native_up, native_down),
                                  torch::optim::AdamWOptions(1e-2));
    for (int step = 0; step < 3; ++step) {
      const Tensor x = numbers({5, 7}, step), target = numbers({5, 7}, step + 0.5);
      optimizer.zero_grad();
      reference.zero_grad();
      (down(torch::relu(up(x))) - target).pow(2).mean().backward();
      (native_down(torch::relu(native_up(x))) - target).pow(2).mean().backward();
      optimizer.step();
      reference.step();
    }
    expect_close(up->weight, native_up->weight, "up", 1e-9);
    expect_close(down->weight, native_down->weight, "down", 1e-9);
    expect_close(down->bias, native_down->bias, "bias", 1e-9);
  });
}

/// Made as shapes and filled in parts: bit for bit what is drawn at once.
TEST(GridLayers, FilledLater) {
  const oslo::MPU mpu(oslo::World::fake(1, 4),
                      oslo::MpuOptions().axes({{"row", 2}, {"column", 2}}));
  const auto check = [](const auto& make) {
    auto now = make_seeded(7, make);
    auto later = make_seeded(7, [&] {
      const oslo::DeferredInit guard;
      return make();
    });
    oslo::materialize(later);
    for (const auto& parameter : now->named_parameters()) {
      EXPECT_TRUE(torch::equal(local_tensor(later->named_parameters()[parameter.key()]),
                               local_tensor(parameter.value())))
          << parameter.key();
    }
  };
  check([&] { return oslo::nn::Linear2D(9, 7, mpu); });
  check([&] {
    return oslo::nn::VocabParallelEmbedding2D(torch::nn::EmbeddingOptions(9, 7).padding_idx(8),
                                              mpu);
  });
  check(
      [&] { return oslo::nn::PatchEmbedding2D(oslo::nn::PatchEmbeddingOptions(4, 2, 3, 7), mpu); });
}

/// Replicas of a grid, each with a batch of its own, exchange gradients as of any model.
TEST(GridLayers, BesideDataReplicas) {
  on_axes({{"data", 2}, {"row", 2}, {"column", 2}}, [](const oslo::MPU& mpu) {
    oslo::nn::Linear2D layer(7, 5, mpu);
    torch::nn::Linear native(7, 5);
    fill_alike(layer, native);
    oslo::DistributedDataParallel<oslo::nn::Linear2D> replicas(layer,
                                                               mpu.get_data_parallel_group());
    const Tensor x = numbers({6, 7}), mine = x.chunk(2)[mpu.rank("data")];
    replicas.forward(mine).pow(2).mean().backward();
    native(x).pow(2).mean().backward();
    expect_close(layer->weight.grad(), native->weight.grad(), "weight");
    expect_close(layer->bias.grad(), native->bias.grad(), "bias");
    const double norm = torch::nn::utils::clip_grad_norm_(layer->parameters(), 0.01);
    EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(native->parameters(), 0.01), 1e-9);
    expect_close(layer->weight.grad(), native->weight.grad(), "clipped");
  });
}

TEST(GridLayers, OnOneRankTheyAreOrdinary) {
  const oslo::MPU mpu(oslo::World::alone());
  oslo::nn::Linear2D flat(9, 7, mpu);
  oslo::nn::Linear3D cube(9, 7, mpu, CubeSide::second);
  oslo::nn::LayerNorm2p5D norm(9, mpu);
  torch::nn::Linear native(9, 7);
  EXPECT_EQ(flat->weight.key_set(), native->weight.key_set());
  EXPECT_EQ(printed(cube),
            "oslo::nn::Linear3D(in_features=9, out_features=7, bias=true, grid=1 rank, "
            "local_weight=[7, 9])");
  for (const auto& layer :
       std::vector<std::shared_ptr<torch::nn::Module>>{flat.ptr(), cube.ptr(), norm.ptr()}) {
    for (const Tensor& parameter : layer->parameters()) EXPECT_FALSE(oslo::is_placed(parameter));
  }
  fill_alike(cube, native);
  expect_same(cube, native, numbers({3, 9}), [&](const Tensor& t) { return cube->split_input(t); });
}

TEST(GridLayers, WhatIsRefusedIsNamed) {
  on_axes({{"tensor", 2}}, [](const oslo::MPU& mpu) {
    EXPECT_THAT(error_of([&] { oslo::nn::Linear2D(8, 8, mpu); }),
                ::testing::AllOf(HasSubstr("Linear2D"), HasSubstr("row and column"),
                                 HasSubstr("\"tensor\"")));
    EXPECT_THAT(
        error_of([&] { oslo::nn::Linear(oslo::nn::LinearOptions(4, 6).keep_gathered(true), mpu); }),
        HasSubstr("keep_gathered"));
  });
  on_axes(Deep::axes(), [](const oslo::MPU& mpu) {
    EXPECT_THAT(error_of([&] { oslo::nn::LayerNorm2D(8, mpu); }), HasSubstr("\"depth\""));
    EXPECT_THAT(error_of([&] { oslo::nn::Embedding3D(8, 8, mpu); }), HasSubstr("input"));
    EXPECT_THAT(error_of([&] { oslo::nn::Linear2p5D(8, 8, mpu, CubeSide::second); }),
                HasSubstr("CubeSide"));
    EXPECT_THAT(
        error_of([&] { oslo::nn::Linear2p5D(oslo::nn::LinearOptions(8, 8).parallel("col"), mpu); }),
        HasSubstr("parallel"));
    EXPECT_THAT(error_of([&] { oslo::nn::Linear2p5D(0, 8, mpu); }), HasSubstr("positive"));
    EXPECT_THAT(error_of([&] { oslo::nn::Embedding2p5D(8, 0, mpu); }), HasSubstr("positive"));
    EXPECT_THAT(error_of([&] {
                  oslo::nn::PatchEmbedding2p5D(oslo::nn::PatchEmbeddingOptions(7, 2, 3, 8), mpu);
                }),
                HasSubstr("do not fill"));
    oslo::nn::PatchEmbedding2p5D patches(oslo::nn::PatchEmbeddingOptions(4, 2, 3, 8), mpu);
    EXPECT_THAT(error_of([&] { patches(torch::ones({2, 1, 4, 4})); }), HasSubstr("[N, 3, 4, 4]"));
  });
}

/// The gradient of a gradient needs what was gathered with its history.
TEST(GridLayers, CreateGraphIsRefusedWhereOperandsAreGatheredAgain) {
  on_axes(Flat::axes(), [](const oslo::MPU& mpu) {
    auto layer = made<oslo::nn::Linear2D>(8, 8, mpu);
    const Tensor x = torch::ones({4, 8}, torch::requires_grad());
    EXPECT_THAT(error_of([&] {
                  torch::autograd::grad({layer(x).pow(2).sum()}, {x}, {}, true,
                                        /*create_graph=*/true);
                }),
                HasSubstr("keep_gathered(true)"));
    oslo::nn::Linear2D keeps(oslo::nn::LinearOptions(7, 5).keep_gathered(true), mpu);
    torch::nn::Linear native(7, 5);
    fill_alike(keeps, native);
    const auto twice = [](auto& layer) {
      const Tensor x = placed_values::leaf(numbers({4, 7}));
      const Tensor first =
          torch::autograd::grad({layer(x).pow(3).sum()}, {x}, {}, true, /*create_graph=*/true)[0];
      layer->zero_grad();
      first.pow(2).sum().backward();
      return layer->weight.grad();
    };
    const Tensor own = twice(keeps), expected = twice(native);
    expect_close(own, expected, "the weight's second derivative", 1e-9);
  });
}

/// A saved part that was written to since is an error, as a saved tensor is.
TEST(GridLayers, AWriteToWhatIsGatheredAgainIsSeen) {
  on_axes(Flat::axes(), [](const oslo::MPU& mpu) {
    auto layer = made<oslo::nn::Linear2D>(8, 8, mpu);
    const Tensor y = layer(torch::ones({4, 8}, torch::requires_grad()));
    {
      const torch::NoGradGuard no_grad;
      layer->weight.mul_(2);
    }
    EXPECT_THAT(placed_values::error_of([&] { y.sum().backward(); }),
                HasSubstr("modified by an inplace operation"));
  });
}

}  // namespace
}  // namespace grid_layers
