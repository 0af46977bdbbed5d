#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

#include "mpu/grid/mpu.h"
#include "parallelizers/layers/grid/embedding.h"
#include "parallelizers/layers/grid/layer_norm.h"
#include "parallelizers/layers/grid/linear.h"
#include "parallelizers/layers/grid/patch_embedding.h"
#include "parallelizers/placement/carrier/access.h"
#include "tests/support/axis_ranks.h"
#include "tests/support/placed_values.h"
#include "tests/support/seeded.h"

// Layers on a grid beside torch::nn's on one device.
namespace grid_layers {

using oslo::full_tensor;
using oslo::local_tensor;
using oslo::nn::CubeSide;
using oslo::test::on_axes;
using placed_values::expect_close;
using placed_values::numbers;
using torch::Tensor;

/// The layers of a mode, and a grid for them.
struct Flat {
  static std::vector<oslo::Axis> axes() { return {{"row", 2}, {"column", 2}}; }
  using Linear = oslo::nn::Linear2D;
  using Classifier = oslo::nn::Classifier2D;
  using VocabParallelClassifier = oslo::nn::VocabParallelClassifier2D;
  using Embedding = oslo::nn::Embedding2D;
  using VocabParallelEmbedding = oslo::nn::VocabParallelEmbedding2D;
  using LayerNorm = oslo::nn::LayerNorm2D;
  using PatchEmbedding = oslo::nn::PatchEmbedding2D;
};
struct Deep {
  static std::vector<oslo::Axis> axes() { return {{"depth", 2}, {"row", 2}, {"column", 2}}; }
  using Linear = oslo::nn::Linear2p5D;
  using Classifier = oslo::nn::Classifier2p5D;
  using VocabParallelClassifier = oslo::nn::VocabParallelClassifier2p5D;
  using Embedding = oslo::nn::Embedding2p5D;
  using VocabParallelEmbedding = oslo::nn::VocabParallelEmbedding2p5D;
  using LayerNorm = oslo::nn::LayerNorm2p5D;
  using PatchEmbedding = oslo::nn::PatchEmbedding2p5D;
};
struct Cube {
  static std::vector<oslo::Axis> axes() { return {{"output", 2}, {"weight", 2}, {"input", 2}}; }
  using Linear = oslo::nn::Linear3D;
  using Classifier = oslo::nn::Classifier3D;
  using VocabParallelClassifier = oslo::nn::VocabParallelClassifier3D;
  using Embedding = oslo::nn::Embedding3D;
  using VocabParallelEmbedding = oslo::nn::VocabParallelEmbedding3D;
  using LayerNorm = oslo::nn::LayerNorm3D;
  using PatchEmbedding = oslo::nn::PatchEmbedding3D;
};
/// Axes of different sizes, some of which lie in other places or cut nothing.
struct Rectangle : Flat {
  static std::vector<oslo::Axis> axes() { return {{"column", 3}, {"row", 2}}; }
};
struct Column : Flat {
  static std::vector<oslo::Axis> axes() { return {{"row", 1}, {"column", 3}}; }
};
struct Slab : Deep {
  static std::vector<oslo::Axis> axes() { return {{"row", 2}, {"depth", 3}, {"column", 1}}; }
};
struct Box : Cube {
  static std::vector<oslo::Axis> axes() { return {{"input", 2}, {"output", 3}, {"weight", 1}}; }
};
struct OtherBox : Cube {
  static std::vector<oslo::Axis> axes() { return {{"weight", 3}, {"input", 2}}; }
};

using Modes = ::testing::Types<Flat, Deep, Cube, Rectangle, Column, Slab, Box, OtherBox>;

/// A layer, drawn alike on all ranks.
template <typename Layer, typename... Arguments>
Layer made(const Arguments&... arguments) {
  return oslo::test::make_seeded(7, [&] { return Layer(arguments...); });
}

/// Gives every parameter of both, of equal names, the same numbers in double.
template <typename Layer, typename Native>
void fill_alike(Layer& layer, Native& native) {
  layer->to(torch::kDouble);
  native->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  const auto own = layer->named_parameters();
  double start = 0.7;
  for (const auto& parameter : native->named_parameters()) {
    const Tensor whole = numbers(parameter.value().sizes(), start += 1.1);
    parameter.value().copy_(whole);
    own[parameter.key()].copy_(whole);
  }
}

/// Output, and the gradients of the input and all parameters, of both layers on `x`. `place`: what
/// becomes of it before.
template <typename Layer, typename Native>
Tensor expect_same(
    Layer& layer, Native& native, const Tensor& x,
    const std::function<Tensor(const Tensor&)>& place = [](const Tensor& t) { return t; }) {
  const bool differentiable = x.is_floating_point();
  const Tensor own = x.detach().clone().set_requires_grad(differentiable);
  const Tensor reference = x.detach().clone().set_requires_grad(differentiable);
  layer->zero_grad();
  native->zero_grad();
  const Tensor y = layer->forward(place(own)), expected = native->forward(reference);
  expect_close(y, expected, "output");
  const Tensor gradient = numbers(expected.sizes(), 2.3);
  y.backward(gradient);
  expected.backward(gradient);
  if (differentiable) expect_close(own.grad(), reference.grad(), "input gradient");
  const auto parameters = layer->named_parameters();
  for (const auto& parameter : native->named_parameters()) {
    const Tensor& part = parameters[parameter.key()];
    if (!part.grad().defined()) {
      ADD_FAILURE() << parameter.key() << " has no gradient";
      continue;
    }
    EXPECT_EQ(part.grad().sizes(), part.sizes()) << parameter.key();
    expect_close(part.grad(), parameter.value().grad(), parameter.key() + "'s gradient");
  }
  return y;
}

}  // namespace grid_layers
