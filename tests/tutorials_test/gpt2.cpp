#include <gtest/gtest.h>
#include <torch/data.h>
#include <torch/serialize.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "tutorials/gpt2/global_batch_sampler.h"
#include "tutorials/gpt2/text_dataset.h"
#include "tutorials/models/gpt2.h"

namespace gpt2 {
namespace {

GPT2Config small() {
  GPT2Config config;
  config.vocab_size = 11;
  config.n_positions = 6;
  config.n_embd = 8;
  config.n_layer = 2;
  config.n_head = 2;
  config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = 0.0;
  return config;
}

TEST(Gpt2Tutorial, HasHuggingFaceNames) {
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const auto& parameter : GPT2LMHeadModel(small())->named_parameters()) {
    shapes[parameter.key()] = parameter.value().sizes().vec();
  }
  EXPECT_EQ(shapes.size(), 5u + 2u * 12u);
  EXPECT_EQ(shapes.at("transformer.wte.weight"), (std::vector<std::int64_t>{11, 8}));
  EXPECT_EQ(shapes.at("transformer.wpe.weight"), (std::vector<std::int64_t>{6, 8}));
  EXPECT_EQ(shapes.at("transformer.h.0.ln_1.weight"), (std::vector<std::int64_t>{8}));
  EXPECT_EQ(shapes.at("transformer.h.1.attn.c_attn.weight"), (std::vector<std::int64_t>{24, 8}));
  EXPECT_EQ(shapes.at("transformer.h.1.attn.c_proj.bias"), (std::vector<std::int64_t>{8}));
  EXPECT_EQ(shapes.at("transformer.h.1.mlp.c_fc.weight"), (std::vector<std::int64_t>{32, 8}));
  EXPECT_EQ(shapes.at("transformer.h.1.mlp.c_proj.weight"), (std::vector<std::int64_t>{8, 32}));
  EXPECT_EQ(shapes.at("transformer.ln_f.bias"), (std::vector<std::int64_t>{8}));
  EXPECT_EQ(shapes.at("lm_head.weight"), (std::vector<std::int64_t>{11, 8}));
}

TEST(Gpt2Tutorial, HeadAndEmbeddingShareTheirWeight) {
  torch::manual_seed(1);
  GPT2LMHeadModel model(small());
  EXPECT_TRUE(model->lm_head->weight.is_same(model->transformer->wte->weight));
  model->forward(torch::zeros({1, 3}, torch::kInt64)).sum().backward();
  // Only the head gives gradients to rows of tokens that the input lacks.
  EXPECT_GT(model->transformer->wte->weight.grad()[5].abs().sum().item<float>(), 0);
}

TEST(Gpt2Tutorial, LooksAtThePastOnly) {
  torch::manual_seed(2);
  GPT2LMHeadModel model(small());
  const torch::Tensor a = torch::tensor({{1, 2, 3, 4}}), b = torch::tensor({{1, 2, 9, 9}});
  const torch::Tensor x = model->forward(a), y = model->forward(b);
  EXPECT_EQ(x.sizes(), (std::vector<std::int64_t>{1, 4, 11}));
  EXPECT_TRUE(torch::allclose(x.narrow(1, 0, 2), y.narrow(1, 0, 2), 0, 1e-6));
  EXPECT_FALSE(torch::allclose(x.narrow(1, 2, 2), y.narrow(1, 2, 2), 0, 1e-4));
}

TEST(Gpt2Tutorial, StartsAtTheLossOfAGuess) {
  torch::manual_seed(3);
  GPT2LMHeadModel model(small());
  const torch::Tensor ids = torch::randint(11, {8, 6}, torch::kInt64);
  const torch::Tensor loss = torch::nn::functional::cross_entropy(
      model->forward(ids).view({-1, 11}), torch::randint(11, {48}, torch::kInt64));
  EXPECT_NEAR(loss.item<double>(), std::log(11.0), 0.1);
}

TEST(Gpt2Tutorial, GeneratesBeyondItsPositionsAndRepeatably) {
  torch::manual_seed(4);
  GPT2LMHeadModel model(small());
  const torch::Tensor prompt = torch::tensor({{1, 2}});
  GenerateOptions how;
  how.temperature = 0;
  const torch::Tensor likeliest = model->generate(prompt, 10, how);
  EXPECT_EQ(likeliest.sizes(), (std::vector<std::int64_t>{1, 12}));
  how.temperature = 5;
  how.top_k = 1;
  EXPECT_TRUE(model->generate(prompt, 10, how).equal(likeliest));
  how.top_k = 4;
  const auto sample = [&] {
    how.generator = at::detail::createCPUGenerator(9);
    return model->generate(prompt, 10, how);
  };
  EXPECT_TRUE(sample().equal(sample()));
  EXPECT_TRUE(model->is_training());
}

TEST(Gpt2Tutorial, ConfigSurvivesJson) {
  const GPT2Config config = small();
  EXPECT_EQ(GPT2Config::from_json(config.to_json()).to_json(), config.to_json());
  nlohmann::json other = config.to_json();
  other["activation_function"] = "relu";
  EXPECT_THROW(GPT2Config::from_json(other), std::runtime_error);
  other.erase("activation_function");
  EXPECT_THROW(GPT2Config::from_json(other), std::runtime_error);
}

TEST(TextDataset, TargetsAreTheNextTokens) {
  TextDataset text(torch::arange(11), 3);
  EXPECT_EQ(*text.size(), 3u);
  EXPECT_TRUE(text.get(2).data.equal(torch::tensor({6, 7, 8})));
  EXPECT_TRUE(text.get(2).target.equal(torch::tensor({7, 8, 9})));
  EXPECT_EQ(*TextDataset(torch::arange(10), 3).size(), 3u);
  EXPECT_EQ(*TextDataset(torch::arange(9), 3).size(), 2u);
  EXPECT_THROW(TextDataset(torch::arange(3), 3), std::runtime_error);
}

// One epoch of global batches as `data_ranks` ranks take them together.
std::vector<std::vector<std::size_t>> global_batches(std::size_t data_ranks, std::size_t epoch) {
  std::vector<std::vector<std::size_t>> batches;
  for (std::size_t rank = 0; rank < data_ranks; ++rank) {
    GlobalBatchSampler sampler(31, 4, data_ranks, rank);
    EXPECT_EQ(sampler.steps_per_epoch(), 7u);
    sampler.set_epoch(epoch);
    sampler.reset();
    std::size_t step = 0;
    while (auto batch = sampler.next(sampler.local_batch())) {
      batches.resize(std::max(batches.size(), step + 1));
      batches[step].insert(batches[step].end(), batch->begin(), batch->end());
      ++step;
    }
    EXPECT_EQ(step, 7u);
  }
  return batches;
}

TEST(GlobalBatchSampler, BatchesDoNotDependOnTheRanks) {
  const auto alone = global_batches(1, 3);
  EXPECT_EQ(global_batches(2, 3), alone);
  EXPECT_EQ(global_batches(4, 3), alone);
  EXPECT_NE(global_batches(2, 4), alone);
  std::set<std::size_t> seen;
  for (const auto& batch : alone) seen.insert(batch.begin(), batch.end());
  EXPECT_EQ(seen.size(), 28u);
}

TEST(GlobalBatchSampler, GoesOnWhereItWasSaved) {
  GlobalBatchSampler sampler(31, 4, 2, 1), restored(31, 4, 2, 1);
  sampler.set_epoch(5);
  sampler.reset();
  sampler.next(2);
  std::stringstream stream;
  torch::save(sampler, stream);
  torch::load(restored, stream);
  EXPECT_EQ(sampler.next(2), restored.next(2));
}

TEST(GlobalBatchSampler, RefusesBatchesThatDoNotDivide) {
  EXPECT_THROW(GlobalBatchSampler(31, 4, 3, 0), std::runtime_error);
  EXPECT_THROW(GlobalBatchSampler(3, 4, 2, 0), std::runtime_error);
  EXPECT_THROW(GlobalBatchSampler(31, 0, 1, 0), std::runtime_error);
  GlobalBatchSampler sampler(31, 4, 2, 0);
  EXPECT_THROW(sampler.next(3), std::runtime_error);
}

}  // namespace
}  // namespace gpt2
