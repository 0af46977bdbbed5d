// Outputs and all gradients of layers on a grid are those of torch::nn on one device.
#include "parallelizers/memory/recompute/checkpoint.h"
#include "tests/grid_layers_test/grid_layers.h"
#include "tests/support/under_autocast.h"

namespace grid_layers {
namespace {

template <typename Mode>
class OnGrid : public ::testing::Test {};
TYPED_TEST_SUITE(OnGrid, Modes);

/// A ViT's first layer as its authors write it.
struct PatchesImpl : torch::nn::Conv2dImpl {
  PatchesImpl(int64_t image, int64_t patch, int64_t channels, int64_t features)
      : Conv2dImpl(torch::nn::Conv2dOptions(channels, features, patch).stride(patch)),
        cls_token(register_parameter("cls_token", torch::zeros({1, 1, features}))),
        position(register_parameter(
            "position", torch::zeros({1, 1 + (image / patch) * (image / patch), features}))) {}
  Tensor forward(const Tensor& images) {
    const Tensor rows = Conv2dImpl::forward(images).flatten(2).transpose(1, 2);
    return torch::cat({cls_token.expand({rows.size(0), -1, -1}), rows}, 1) + position;
  }
  Tensor cls_token, position;
};
TORCH_MODULE(Patches);

/// Whole, as `split_input` cuts it, and of which only some axes cut something.
template <typename Layer, typename Native>
void expect_same_however_it_comes(Layer& layer, Native& native, const Tensor& x) {
  const Tensor y = expect_same(layer, native, x);
  const Tensor split =
      expect_same(layer, native, x, [&](const Tensor& t) { return layer->split_input(t); });
  if (x.dim() > 1 && oslo::is_placed(layer->weight)) {
    EXPECT_EQ(local_tensor(y).sizes(), local_tensor(split).sizes());
  }
}

TYPED_TEST(OnGrid, Linear) {
  on_axes(TypeParam::axes(), [](const oslo::MPU& mpu) {
    for (const bool bias : {true, false}) {
      for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{{8, 12}, {7, 5}}) {
        const auto options = torch::nn::LinearOptions(in, out).bias(bias);
        typename TypeParam::Linear layer(options, mpu);
        torch::nn::Linear native(options);
        fill_alike(layer, native);
        expect_same_however_it_comes(layer, native, numbers({8, in}));
        expect_same_however_it_comes(layer, native, numbers({5, in}));
        expect_same_however_it_comes(layer, native, numbers({3, 5, in}));
        expect_same_however_it_comes(layer, native, numbers({1, in}));
        expect_same_however_it_comes(layer, native, numbers({in}));
      }
    }
  });
}

TYPED_TEST(OnGrid, Classifiers) {
  on_axes(TypeParam::axes(), [](const oslo::MPU& mpu) {
    for (const auto& [in, out] : std::vector<std::pair<int64_t, int64_t>>{{8, 12}, {9, 7}}) {
      typename TypeParam::Classifier few(in, out, mpu);
      typename TypeParam::VocabParallelClassifier many(in, out, mpu);
      torch::nn::Linear native_few(in, out), native_many(in, out);
      fill_alike(few, native_few);
      fill_alike(many, native_many);
      for (const Tensor& x : {numbers({8, in}), numbers({5, 3, in}), numbers({in})}) {
        expect_same_however_it_comes(few, native_few, x);
        expect_same_however_it_comes(many, native_many, x);
      }
    }
  });
}

TYPED_TEST(OnGrid, Embeddings) {
  on_axes(TypeParam::axes(), [](const oslo::MPU& mpu) {
    for (const auto& [words, features] :
         std::vector<std::pair<int64_t, int64_t>>{{20, 8}, {13, 7}}) {
      for (const int64_t padding : {-1, 0, 11}) {
        torch::nn::EmbeddingOptions options(words, features);
        if (padding >= 0) options.padding_idx(padding);
        typename TypeParam::Embedding table(options, mpu);
        typename TypeParam::VocabParallelEmbedding vocabulary(options, mpu);
        torch::nn::Embedding native(options);
        fill_alike(table, native);
        fill_alike(vocabulary, native);
        for (const Tensor& ids :
             {torch::arange(24).view({8, 3}) % words, torch::arange(15).view({5, 3}) * 7 % words,
              torch::tensor({11, 0, 12})}) {
          expect_same(table, native, ids);
          expect_same(vocabulary, native, ids);
        }
      }
    }
  });
}

TYPED_TEST(OnGrid, LayerNorm) {
  on_axes(TypeParam::axes(), [](const oslo::MPU& mpu) {
    for (const int64_t features : {8, 7}) {
      typename TypeParam::LayerNorm layer(features, mpu);
      torch::nn::LayerNorm native(torch::nn::LayerNormOptions({features}));
      fill_alike(layer, native);
      for (const Tensor& x :
           {numbers({8, features}), numbers({5, 3, features}), numbers({features})}) {
        expect_same_however_it_comes(layer, native, x);
      }
    }
    typename TypeParam::LayerNorm plain(
        torch::nn::LayerNormOptions({3, 10}).elementwise_affine(false), mpu);
    torch::nn::LayerNorm native(torch::nn::LayerNormOptions({3, 10}).elementwise_affine(false));
    expect_same_however_it_comes(plain, native, numbers({4, 3, 10}));
  });
}

TYPED_TEST(OnGrid, PatchEmbedding) {
  on_axes(TypeParam::axes(), [](const oslo::MPU& mpu) {
    for (const int64_t features : {8, 7}) {
      const oslo::nn::PatchEmbeddingOptions options(6, 2, 3, features);
      typename TypeParam::PatchEmbedding layer(options, mpu);
      Patches native(6, 2, 3, features);
      fill_alike(layer, native);
      expect_same(layer, native, numbers({8, 3, 6, 6}));
      expect_same(layer, native, numbers({5, 3, 6, 6}));
    }
  });
}

/// Both sides of the cube after each other, norms between, as a block is.
TEST(Linear3D, ABlockEndsAsItBegan) {
  on_axes(Cube::axes(), [](const oslo::MPU& mpu) {
    oslo::nn::LayerNorm3D norm(8, mpu), inner_norm(12, mpu, CubeSide::second);
    oslo::nn::Linear3D up(8, 12, mpu), down(12, 8, mpu, CubeSide::second);
    torch::nn::Linear native_up(8, 12), native_down(12, 8);
    torch::nn::LayerNorm native_norm(torch::nn::LayerNormOptions({8})),
        native_inner_norm(torch::nn::LayerNormOptions({12}));
    fill_alike(norm, native_norm);
    fill_alike(inner_norm, native_inner_norm);
    fill_alike(up, native_up);
    fill_alike(down, native_down);
    const Tensor own = placed_values::leaf(numbers({9, 8})), reference = placed_values::leaf(own);
    const Tensor x = norm->split_input(own);
    const Tensor y = x + down(torch::gelu(inner_norm(up(norm(x)))));
    const Tensor expected =
        reference + native_down(torch::gelu(native_inner_norm(native_up(native_norm(reference)))));
    EXPECT_TRUE(*oslo::layout(y) == *oslo::layout(x));
    expect_close(y, expected, "output");
    y.pow(2).sum().backward();
    expected.pow(2).sum().backward();
    expect_close(own.grad(), reference.grad(), "input gradient");
    expect_close(up->weight.grad(), native_up->weight.grad(), "up");
    expect_close(down->weight.grad(), native_down->weight.grad(), "down");
    expect_close(down->bias.grad(), native_down->bias.grad(), "down's bias");
    expect_close(inner_norm->weight.grad(), native_inner_norm->weight.grad(), "norm");
  });
}

/// In a segment that backward runs again.
TYPED_TEST(OnGrid, RunAgainInBackward) {
  on_axes(TypeParam::axes(), [](const oslo::MPU& mpu) {
    typename TypeParam::Linear layer(7, 5, mpu);
    torch::nn::Linear native(7, 5);
    fill_alike(layer, native);
    const Tensor own = placed_values::leaf(numbers({5, 7})), reference = placed_values::leaf(own);
    const Tensor y = oslo::checkpoint([&](const Tensor& x) { return layer(x).sin(); }, own);
    const Tensor expected = native(reference).sin();
    expect_close(y, expected, "output");
    y.sum().backward();
    expected.sum().backward();
    expect_close(own.grad(), reference.grad(), "input gradient");
    expect_close(layer->weight.grad(), native->weight.grad(), "weight");
    expect_close(layer->bias.grad(), native->bias.grad(), "bias");
  });
}

/// Weights are cast, and gathered as what they are cast to; so are they gathered again.
TYPED_TEST(OnGrid, UnderAutocast) {
  on_axes(TypeParam::axes(), [](const oslo::MPU& mpu) {
    typename TypeParam::Linear layer(7, 5, mpu);
    torch::nn::Linear native(7, 5);
    fill_alike(layer, native);
    layer->to(torch::kFloat);
    native->to(torch::kFloat);
    const Tensor x = numbers({5, 7}).to(torch::kFloat);
    const auto run = [&](auto& linear) {
      const oslo::test::UnderAutocast autocast(torch::kBFloat16);
      return linear(x);
    };
    const Tensor y = run(layer), expected = run(native);
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    expect_close(y, expected, "output", 0.05);
    y.sum().backward();
    expected.sum().backward();
    expect_close(layer->weight.grad(), native->weight.grad(), "weight", 0.05);
    expect_close(layer->bias.grad(), native->bias.grad(), "bias", 0.05);
  });
}

/// A head that is the table.
TYPED_TEST(OnGrid, ATiedHead) {
  on_axes(TypeParam::axes(), [](const oslo::MPU& mpu) {
    typename TypeParam::VocabParallelEmbedding table(13, 8, mpu);
    typename TypeParam::VocabParallelClassifier head(oslo::nn::LinearOptions(8, 13).bias(false),
                                                     mpu);
    torch::nn::Embedding native(13, 8);
    fill_alike(table, native);
    EXPECT_TRUE(*oslo::layout(head->weight) == *oslo::layout(table->weight));
    head->weight = table->weight;
    const Tensor ids = torch::arange(15).view({5, 3}) * 7 % 13;
    const auto loss_of = [&](const Tensor& logits) {
      return torch::nn::functional::cross_entropy(logits.view({-1, 13}), ids.view({-1}));
    };
    const Tensor loss = loss_of(head(table(ids)));
    const Tensor expected = loss_of(native(ids).matmul(native->weight.t()));
    expect_close(loss, expected, "loss");
    loss.backward();
    expected.backward();
    expect_close(table->weight.grad(), native->weight.grad(), "the table's gradient");
  });
}

}  // namespace
}  // namespace grid_layers
