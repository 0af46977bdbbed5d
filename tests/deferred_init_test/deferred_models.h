#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>

#include <string>

#include "parallelizers/deferred/content.h"
#include "parallelizers/deferred/fill.h"
#include "parallelizers/placement/carrier/mark.h"
#include "tests/support/seeded.h"

// Models constructed under a DeferredInit, against the same ones constructed as ever.
namespace deferred_models {

using oslo::test::make_seeded;
using torch::Tensor;

/// Every layer of LibTorch that has weights or buffers, in sizes that divide by nothing.
struct LayersImpl : torch::nn::Module {
  LayersImpl() {
    register_module("linear", torch::nn::Linear(37, 53));
    register_module("square", torch::nn::Linear(torch::nn::LinearOptions(64, 32).bias(false)));
    register_module("embedding",
                    torch::nn::Embedding(torch::nn::EmbeddingOptions(50, 12).padding_idx(3)));
    register_module("bag", torch::nn::EmbeddingBag(21, 5));
    register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({37})));
    register_module("batch_norm", torch::nn::BatchNorm2d(7));
    register_module("group_norm", torch::nn::GroupNorm(3, 9));
    register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 7, 5).groups(1)));
    register_module("transposed", torch::nn::ConvTranspose1d(3, 5, 3));
    register_module("attention", torch::nn::MultiheadAttention(12, 3));
    register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(5, 7).num_layers(2)));
    register_module("gru", torch::nn::GRUCell(5, 7));
    register_module("bilinear", torch::nn::Bilinear(3, 5, 7));
    register_module("prelu", torch::nn::PReLU());
    register_module("encoder", torch::nn::TransformerEncoderLayer(12, 2));
  }
};
TORCH_MODULE(Layers);

inline void expect_same_generator(const std::function<void()>& make_plain,
                                  const std::function<void()>& make_deferred, uint64_t seed) {
  const Tensor expected = make_seeded(seed, [&] {
    make_plain();
    return at::detail::getDefaultCPUGenerator().get_state();
  });
  const Tensor actual = make_seeded(seed, [&] {
    make_deferred();
    return at::detail::getDefaultCPUGenerator().get_state();
  });
  EXPECT_TRUE(torch::equal(actual, expected)) << "the generator's state";
}

inline void expect_same_tensor(const Tensor& actual, const Tensor& expected,
                               const std::string& name) {
  ASSERT_FALSE(oslo::is_deferred(actual)) << name;
  EXPECT_EQ(actual.sizes(), expected.sizes()) << name;
  EXPECT_EQ(actual.strides(), expected.strides()) << name;
  EXPECT_EQ(actual.dtype(), expected.dtype()) << name;
  EXPECT_EQ(actual.requires_grad(), expected.requires_grad()) << name;
  EXPECT_EQ(actual.is_leaf(), expected.is_leaf()) << name;
  EXPECT_TRUE(torch::equal(actual, expected)) << name << "\n" << actual << "\n" << expected;
}

inline void expect_same_model(const torch::nn::Module& actual, const torch::nn::Module& expected) {
  for (const auto& item : expected.named_parameters()) {
    expect_same_tensor(actual.named_parameters()[item.key()], item.value(), item.key());
  }
  for (const auto& item : expected.named_buffers()) {
    expect_same_tensor(actual.named_buffers()[item.key()], item.value(), item.key());
  }
}

/// Constructs twice, fills the deferred one, and compares; returns both.
template <typename Make>
auto compare(const Make& make, uint64_t seed = 7) {
  using Model = decltype(make());
  std::pair<Model, Model> both{nullptr, nullptr};
  expect_same_generator([&] { both.first = make(); },
                        [&] {
                          const oslo::DeferredInit guard;
                          both.second = make();
                        },
                        seed);
  size_t deferred = 0;
  for (const Tensor& parameter : both.second->parameters())
    deferred += oslo::is_deferred(parameter);
  EXPECT_EQ(deferred, both.second->parameters().size());
  oslo::materialize(both.second);
  expect_same_model(*both.second, *both.first);
  return both;
}

/// A module whose parameters are what `fill` makes of tensors of the sizes.
struct FilledImpl : torch::nn::Module {
  using Fill = std::function<void(const Tensor&)>;
  FilledImpl(std::vector<std::vector<int64_t>> sizes, const Fill& fill,
             torch::Dtype type = torch::kFloat) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      const Tensor parameter =
          register_parameter(c10::str("p", i), torch::empty(sizes[i], type), type != torch::kLong);
      const torch::NoGradGuard no_grad;
      fill(parameter);
    }
  }
};
TORCH_MODULE(Filled);

inline Filled filled(std::vector<std::vector<int64_t>> sizes, const FilledImpl::Fill& fill,
                     torch::Dtype type = torch::kFloat) {
  return Filled(std::make_shared<FilledImpl>(std::move(sizes), fill, type));
}

}  // namespace deferred_models
