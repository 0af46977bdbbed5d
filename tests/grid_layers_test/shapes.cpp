// What a rank holds (acceptance-2 C.2), with 2 ranks an axis.
#include <gmock/gmock.h>

#include <map>

#include "tests/grid_layers_test/grid_layers.h"

namespace grid_layers {
namespace {

using Shape = std::vector<int64_t>;
using Shapes = std::map<std::string, Shape>;

constexpr int64_t kBatch = 8, kTime = 5, kHidden = 8, kOut = 12, kWords = 20, kClasses = 4;

template <typename Layer>
void note(Shapes& shapes, const std::string& kind, const Layer& layer) {
  for (const auto& parameter : layer->named_parameters()) {
    shapes[kind + " " + parameter.key()] = parameter.value().sizes().vec();
  }
}

/// Of everything that has one: parameters, and activations as this rank has them.
template <typename Mode>
Shapes shapes_of(const oslo::MPU& mpu) {
  Shapes shapes;
  auto linear = made<typename Mode::Linear>(kHidden, kOut, mpu);
  auto norm = made<typename Mode::LayerNorm>(kHidden, mpu);
  auto table = made<typename Mode::Embedding>(kWords, kHidden, mpu);
  auto words = made<typename Mode::VocabParallelEmbedding>(kWords, kHidden, mpu);
  auto classifier = made<typename Mode::Classifier>(kHidden, kClasses, mpu);
  auto head = made<typename Mode::VocabParallelClassifier>(kHidden, kWords, mpu);
  auto patches =
      made<typename Mode::PatchEmbedding>(oslo::nn::PatchEmbeddingOptions(16, 4, 3, kHidden), mpu);
  note(shapes, "linear", linear);
  note(shapes, "norm", norm);
  note(shapes, "table", table);
  note(shapes, "words", words);
  note(shapes, "classifier", classifier);
  note(shapes, "head", head);
  note(shapes, "patches", patches);
  const auto local = [&](const std::string& name, const Tensor& placed, const Shape& whole) {
    EXPECT_EQ(placed.sizes().vec(), whole) << name;
    shapes[name] = local_tensor(placed).sizes().vec();
  };
  const Tensor ids = torch::arange(kBatch * kTime).view({kBatch, kTime}) % kWords;
  const Tensor x = linear->split_input(torch::ones({kBatch, kTime, kHidden}));
  const Shape stream{kBatch, kTime, kHidden};
  local("x", x, stream);
  local("y", linear(x), {kBatch, kTime, kOut});
  local("y of whole x", linear(torch::ones({kBatch, kTime, kHidden})), {kBatch, kTime, kOut});
  local("normalized", norm(torch::ones({kBatch, kTime, kHidden})), stream);
  local("looked up", table(ids), stream);
  local("words looked up", words(ids), stream);
  local("classes", classifier(x), {kBatch, kTime, kClasses});
  local("logits", head(x), {kBatch, kTime, kWords});
  local("embedded", patches(torch::ones({kBatch, 3, 16, 16})), {kBatch, 17, kHidden});
  return shapes;
}

TEST(GridLayers, ShapesARankIn2D) {
  on_axes(Flat::axes(), [](const oslo::MPU& mpu) {
    EXPECT_EQ(shapes_of<Flat>(mpu), (Shapes{{"x", {4, 5, 4}},
                                            {"linear weight", {6, 4}},
                                            {"linear bias", {3}},
                                            {"y", {4, 5, 6}},
                                            {"y of whole x", {4, 5, 6}},
                                            {"norm weight", {2}},
                                            {"norm bias", {2}},
                                            {"normalized", {4, 5, 4}},
                                            {"table weight", {20, 2}},
                                            {"looked up", {4, 5, 4}},
                                            {"words weight", {10, 4}},
                                            {"words looked up", {4, 5, 4}},
                                            {"classifier weight", {4, 2}},
                                            {"classifier bias", {4}},
                                            {"classes", {4, 5, 4}},
                                            {"head weight", {10, 4}},
                                            {"head bias", {5}},
                                            {"logits", {4, 5, 10}},
                                            {"patches weight", {2, 3, 4, 4}},
                                            {"patches bias", {2}},
                                            {"patches cls_token", {1, 1, 2}},
                                            {"patches position", {1, 17, 2}},
                                            {"embedded", {4, 17, 4}}}));
  });
}

TEST(GridLayers, ShapesARankIn2p5D) {
  on_axes(Deep::axes(), [](const oslo::MPU& mpu) {
    EXPECT_EQ(shapes_of<Deep>(mpu), (Shapes{{"x", {2, 5, 4}},
                                            {"linear weight", {6, 4}},
                                            {"linear bias", {6}},
                                            {"y", {2, 5, 6}},
                                            {"y of whole x", {2, 5, 6}},
                                            {"norm weight", {4}},
                                            {"norm bias", {4}},
                                            {"normalized", {2, 5, 4}},
                                            {"table weight", {20, 2}},
                                            {"looked up", {2, 5, 4}},
                                            {"words weight", {10, 4}},
                                            {"words looked up", {2, 5, 4}},
                                            {"classifier weight", {4, 2}},
                                            {"classifier bias", {4}},
                                            {"classes", {2, 5, 4}},
                                            {"head weight", {10, 4}},
                                            {"head bias", {10}},
                                            {"logits", {2, 5, 10}},
                                            {"patches weight", {2, 3, 4, 4}},
                                            {"patches bias", {2}},
                                            {"patches cls_token", {1, 1, 2}},
                                            {"patches position", {1, 17, 2}},
                                            {"embedded", {2, 17, 4}}}));
  });
}

TEST(GridLayers, ShapesARankIn3D) {
  on_axes(Cube::axes(), [](const oslo::MPU& mpu) {
    EXPECT_EQ(shapes_of<Cube>(mpu), (Shapes{{"x", {2, 5, 4}},
                                            {"linear weight", {6, 2}},
                                            {"linear bias", {6}},
                                            {"y", {2, 5, 6}},
                                            {"y of whole x", {2, 5, 6}},
                                            {"norm weight", {4}},
                                            {"norm bias", {4}},
                                            {"normalized", {2, 5, 4}},
                                            {"table weight", {20, 4}},
                                            {"looked up", {2, 5, 4}},
                                            {"words weight", {5, 4}},
                                            {"words looked up", {2, 5, 4}},
                                            {"classifier weight", {4, 4}},
                                            {"classifier bias", {4}},
                                            {"classes", {2, 5, 4}},
                                            {"head weight", {5, 4}},
                                            {"head bias", {10}},
                                            {"logits", {2, 5, 10}},
                                            {"patches weight", {4, 3, 4, 4}},
                                            {"patches bias", {4}},
                                            {"patches cls_token", {1, 1, 4}},
                                            {"patches position", {1, 17, 4}},
                                            {"embedded", {2, 17, 4}}}));
  });
}

/// Which rows and columns, not how many alone: of rank (row i, column j), and of (i, j, k) in 3D.
TEST(GridLayers, EachRankHasThePartOfItsPlace) {
  const auto chunk = [](const Tensor& whole, int64_t parts, int64_t part, int64_t dim) {
    return whole.chunk(parts, dim)[part];
  };
  on_axes(Flat::axes(), [&](const oslo::MPU& mpu) {
    const int i = mpu.rank("row"), j = mpu.rank("column");
    auto layer = made<oslo::nn::Linear2D>(kHidden, kOut, mpu);
    const Tensor weight = full_tensor(layer->weight), bias = full_tensor(layer->bias);
    EXPECT_TRUE(torch::equal(local_tensor(layer->weight), chunk(chunk(weight, 2, j, 0), 2, i, 1)));
    EXPECT_TRUE(torch::equal(local_tensor(layer->bias), chunk(chunk(bias, 2, j, 0), 2, i, 0)));
  });
  on_axes(Cube::axes(), [&](const oslo::MPU& mpu) {
    for (const CubeSide side : {CubeSide::first, CubeSide::second}) {
      const bool first = side == CubeSide::first;
      const int i = mpu.rank("input"), j = mpu.rank(first ? "weight" : "output"),
                k = mpu.rank(first ? "output" : "weight");
      auto layer = made<oslo::nn::Linear3D>(kHidden, kOut, mpu, side);
      const Tensor weight = full_tensor(layer->weight), bias = full_tensor(layer->bias);
      const Tensor own = chunk(chunk(chunk(weight, 2, j, 0), 2, k, 1), 2, i, 1);
      EXPECT_TRUE(torch::equal(local_tensor(layer->weight), own));
      EXPECT_TRUE(torch::equal(local_tensor(layer->bias), chunk(bias, 2, j, 0)));
      const Tensor x = numbers({kBatch, kHidden});
      const Tensor placed = layer->split_input(x);
      const Tensor mine = chunk(chunk(chunk(x, 2, i, 0), 2, j, 0), 2, k, 1);
      EXPECT_TRUE(torch::equal(local_tensor(placed), mine));
      layer->to(torch::kDouble);
      const Tensor y = layer(placed), whole = full_tensor(y);
      EXPECT_TRUE(
          torch::equal(local_tensor(y), chunk(chunk(chunk(whole, 2, i, 0), 2, k, 0), 2, j, 1)));
    }
  });
}

}  // namespace
}  // namespace grid_layers
