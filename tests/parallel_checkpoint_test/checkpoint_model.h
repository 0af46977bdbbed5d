#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <memory>
#include <string>

#include "checkpoint/formats/tensors/state_dict.h"
#include "checkpoint/load/load_state.h"
#include "mpu/grid/mpu.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"

// What these tests save and load.
namespace oslo::checkpoint_test {

constexpr int64_t kVocabulary = 53;
constexpr int64_t kWidth = 12;

/// One of everything: a vocabulary that no size divides, a fused projection, a column and a row
/// linear, a tie as C++ programs write it, whole parameters and buffers of two dtypes.
struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    wte = register_module("wte", torch::nn::Embedding(kVocabulary, kWidth));
    qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
    proj = register_module("proj", torch::nn::Linear(kWidth, kWidth));
    norm = register_module("norm", torch::nn::BatchNorm1d(kWidth));
    scale = register_parameter("scale", at::ones({}));
    mask = register_buffer("mask", at::ones({3, 3}, at::kBool).tril());
    head = register_module(
        "head", torch::nn::Linear(torch::nn::LinearOptions(kWidth, kVocabulary).bias(false)));
    head->weight = wte->weight;
  }
  torch::nn::Embedding wte{nullptr};
  torch::nn::Linear qkv{nullptr}, proj{nullptr}, head{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  at::Tensor scale, mask;
};
using Model = std::shared_ptr<ModelImpl>;

/// Whole values that depend on `seed` only: the same on every rank.
inline Model make_model(int seed) {
  const at::AutoGradMode no_grad(false);
  auto model = std::make_shared<ModelImpl>();
  auto generator = at::detail::createCPUGenerator(seed);
  for (at::Tensor& tensor : model->parameters()) tensor.normal_(0, 1, generator);
  for (at::Tensor& tensor : model->buffers()) tensor.random_(0, 2, generator);
  return model;
}

inline void cut(const at::Tensor& parameter, const ContextPtr& context, const Placement& placement,
                const std::string& name) {
  mark_parameter(
      parameter,
      std::make_shared<const Layout>(make_layout(context, {placement}, parameter.sizes())), name);
}

inline Model make_parallel(int seed, const MPU& mpu) {
  Model model = make_model(seed);
  if (mpu.get_tensor_parallel_world_size() == 1) return model;
  const ContextPtr context = context_of(mpu.tensor_mesh());
  cut(model->wte->weight, context, Placement::shard(0), "wte.weight");
  cut(model->qkv->weight, context, Placement::shard(0, 3), "qkv.weight");
  cut(model->qkv->bias, context, Placement::shard(0, 3), "qkv.bias");
  cut(model->proj->weight, context, Placement::shard(1), "proj.weight");
  return model;
}

/// Every tensor in use as a whole; collective.
inline StateDict whole_state(const ModelImpl& model) {
  const at::AutoGradMode no_grad(false);
  StateDict state;
  const ModelState parts(model);
  for (const auto& [name, number] : parts.names) {
    state.insert(name, full_tensor(parts.tensors[number].local).detach().clone());
  }
  return state;
}

inline void expect_equal(const StateDict& actual, const StateDict& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    const at::Tensor* found = actual.find(name);
    ASSERT_NE(found, nullptr) << name;
    EXPECT_EQ(found->scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(*found, tensor)) << name;
  }
}

}  // namespace oslo::checkpoint_test
