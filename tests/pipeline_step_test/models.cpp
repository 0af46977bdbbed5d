// Models of the catalogue, as their authors wrote them, on pipeline stages with and without tensor
// and data parallelism, under every kind of schedule: losses, gradients and weights equal those of
// one device. A choice of grids and kinds; with OSLO_TEST_PAIRS=all all of them.
#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>

#include "tests/models/bert.h"
#include "tests/models/gpt2.h"
#include "tests/models/llama.h"
#include "tests/models/t5.h"
#include "tests/models/unet.h"
#include "tests/models/vit.h"
#include "tests/support/pipeline_parity.h"
#include "tests/support/temporary_directory.h"

namespace oslo::test {
namespace {

using pipeline_parity::expect_parity;
using pipeline_parity::Grid;
using pipeline_parity::Outcome;
using pipeline_parity::Tensors;
using pipeline_parity::Trial;
using torch::Tensor;
namespace F = torch::nn::functional;

Tensor token_loss(const Tensor& logits, const Tensor& target) {
  return F::cross_entropy(logits.view({-1, logits.size(-1)}), target.reshape({-1}));
}

/// From words to words.
const auto language_loss = [](auto& model, const Tensors& micro) {
  return token_loss(model->forward(micro[0]), micro[1]);
};

auto words(int64_t vocabulary) {
  return [=](int) {
    return Tensors{torch::randint(vocabulary, {8, 9}), torch::randint(vocabulary, {8, 9})};
  };
}

class PipelineModels : public testing::TestWithParam<std::tuple<Grid, const char*>> {
 protected:
  Trial trial() const {
    Trial trial;
    trial.grid = std::get<0>(GetParam());
    trial.kind = std::get<1>(GetParam());
    trial.micro_batches = trial.kind == "dualpipev" ? 2 * trial.grid.pipeline : 4;
    trial.steps = trial.grid.data > 1 ? 5 : 2;
    return trial;
  }
  /// So many that each stage has one.
  int layers() const {
    const Trial of = trial();
    return std::max(4, of.grid.pipeline * pipeline::default_chunks(of.kind));
  }
};

TEST_P(PipelineModels, Gpt2) {
  const auto make = [layers = layers()] {
    models::GPT2Options options;
    options.vocabulary = 53;
    options.hidden = 16;
    options.layers = layers;
    options.fused_attention = false;
    return models::GPT2(options);
  };
  Trial setup = trial();
  const auto check = [&](const Outcome& outcome) {
    const int rank = outcome.parallel.mpu().get_pipeline_parallel_rank();
    const auto [below, above] = pipeline_parity::boundaries_of(outcome.schedule.schedule(), rank);
    EXPECT_EQ(outcome.last.sent, below * setup.micro_batches);
  };
  expect_parity(setup, make, words(53), language_loss, check);
}

TEST_P(PipelineModels, Llama) {
  const auto make = [layers = layers()] {
    models::LlamaOptions options;
    options.layers = layers;
    return models::Llama(options);
  };
  expect_parity(trial(), make, words(70), language_loss);
}

TEST_P(PipelineModels, Bert) {
  const models::BertOptions defaults;
  const auto make = [layers = layers()] {
    models::BertOptions options;
    options.layers = layers;
    return models::Bert(options);
  };
  const auto batch = [&](int) {
    auto tokens = torch::randint(1, defaults.vocabulary, {8, 9});
    tokens.slice(1, 7, 9).fill_(defaults.padding);
    return Tensors{tokens, torch::randint(defaults.labels, {8})};
  };
  const auto loss = [](auto& model, const Tensors& micro) {
    return F::cross_entropy(model->forward(micro[0]), micro[1]);
  };
  expect_parity(trial(), make, batch, loss);
}

TEST_P(PipelineModels, T5) {
  const auto make = [layers = layers()] {
    models::T5Config config;
    config.num_layers = layers / 2;  // of each of the two stacks
    return models::T5(config);
  };
  const auto batch = [](int) {
    Tensor mask = torch::ones({8, 9}, torch::kDouble);
    mask.slice(1, 6, 9).zero_();
    return Tensors{torch::randint(1, 50, {8, 9}), mask, torch::randint(1, 50, {8, 7})};
  };
  const auto loss = [](auto& model, const Tensors& micro) {
    return token_loss(model->forward(micro[0], micro[1], micro[2]), micro[2]);
  };
  expect_parity(trial(), make, batch, loss);
}

TEST_P(PipelineModels, VisionTransformer) {
  const auto make = [depth = layers()] {
    return models::VisionTransformer(12, 4, 36, 4, 70, depth, 7);
  };
  const auto batch = [](int) {
    return Tensors{torch::randn({8, 3, 12, 12}, torch::kDouble), torch::randint(7, {8})};
  };
  const auto loss = [](auto& model, const Tensors& micro) {
    return F::cross_entropy(model->forward(micro[0]), micro[1]);
  };
  expect_parity(trial(), make, batch, loss);
}

TEST_P(PipelineModels, UNet) {
  const auto make = [] { return models::unet::UNet(); };
  const auto batch = [](int) {
    return Tensors{torch::randn({8, 2, 8, 8}, torch::kDouble), torch::randn({8, 6}, torch::kDouble),
                   torch::randn({8, 3, 8, 8}, torch::kDouble)};
  };
  const auto loss = [](auto& model, const Tensors& micro) {
    return F::mse_loss(model->forward(micro[0], micro[1]), micro[2]);
  };
  expect_parity(trial(), make, batch, loss);
}

std::vector<std::tuple<Grid, const char*>> grids_and_kinds() {
  if (std::getenv("OSLO_TEST_PAIRS") == nullptr) {
    return {{{1, 1, 2}, "1f1b"},      {{1, 1, 4}, "gpipe"},       {{1, 2, 2}, "zero_bubble"},
            {{1, 1, 3}, "naive"},     {{1, 1, 2}, "interleaved"}, {{1, 2, 2}, "zbv"},
            {{1, 1, 4}, "dualpipev"}, {{2, 2, 2}, "1f1b"}};
  }
  std::vector<std::tuple<Grid, const char*>> all;
  for (const Grid grid : {Grid{1, 1, 2}, Grid{1, 1, 4}, Grid{1, 2, 2}, Grid{2, 2, 2}}) {
    for (const char* kind :
         {"naive", "gpipe", "1f1b", "interleaved", "zero_bubble", "zbv", "dualpipev"}) {
      all.emplace_back(grid, kind);
    }
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Grids, PipelineModels, testing::ValuesIn(grids_and_kinds()),
                         [](const auto& info) {
                           return std::get<0>(info.param).name() + "_" + std::get<1>(info.param);
                         });

/// Data 2 x tensor 2 x pipeline 2, and the same model merged and by coordinates afterwards.
class ThreeDimensions : public testing::TestWithParam<const char*> {};

TEST_P(ThreeDimensions, TrainAsOneDeviceAndSaveOneModel) {
  const TemporaryDirectory directory;
  Trial setup;
  setup.grid = {2, 2, 2};
  setup.config = GetParam();
  setup.kind = pipeline_shape(Config::parse(GetParam()).values()).kind;
  const auto make = [layers = 2 * pipeline::default_chunks(setup.kind)] {
    models::GPT2Options options;
    options.vocabulary = 53;
    options.hidden = 32;
    options.layers = layers;
    return models::GPT2(options);
  };
  setup.steps = 5;
  setup.micro_batches = 2;
  const auto check = [&](const Outcome& outcome) {
    const MPU& mpu = outcome.parallel.mpu();
    EXPECT_EQ(mpu.data_group()->ledger().total("all_reduce").calls, setup.steps);
    const std::string parts = directory.path() / "parts", merged = directory.path() / "merged";
    outcome.parallel.save_parallelized(parts);
    outcome.parallel.save_parallelized(merged, SaveOptions().merge_checkpoints(true));
    const auto model = outcome.parallel.module_as<models::GPT2Impl>();
    std::map<std::string, Tensor> trained;
    for (const auto& item : model->named_parameters()) {
      trained[item.key()] = full_tensor(item.value());
    }
    auto plain = make();
    plain->to(torch::kDouble);
    load_state(plain.ptr(), merged);
    for (const auto& item : plain->named_parameters()) {
      EXPECT_TRUE(torch::equal(item.value().detach(), trained.at(item.key()))) << item.key();
    }
    for (const std::string& from : {parts, merged}) {
      {
        const torch::NoGradGuard no_grad;
        for (const Tensor& parameter : model->parameters()) parameter.mul_(0);
      }
      outcome.parallel.from_parallelized(from);
      for (const auto& item : model->named_parameters()) {
        EXPECT_TRUE(torch::equal(full_tensor(item.value()), trained.at(item.key())))
            << from << " " << item.key();
      }
    }
    int files = 0;
    for (int tp = 0; tp < 2; ++tp) {
      for (int pp = 0; pp < 2; ++pp) {
        files += std::filesystem::exists(
            c10::str(parts, "/pytorch_model_tp_", tp, "_pp_", pp, ".safetensors"));
      }
    }
    EXPECT_EQ(files, 4);
  };
  expect_parity(setup, make, words(53), language_loss, check);
}

constexpr const char* kDialects[] = {"LiBai", "ColossalAI", "LiBaiZbv", "ColossalAIInterleaved"};

INSTANTIATE_TEST_SUITE_P(
    Dialects, ThreeDimensions,
    testing::Values(R"({"train": {"dist": {"data_parallel_size": 2, "tensor_parallel_size": 2,
                        "pipeline_parallel_size": 2, "pipeline_num_layers": 2}}})",
                    R"({"parallel": {"data": 2, "pipeline": {"size": 2},
                        "tensor": {"size": 2, "mode": "1d"}}, "rank_order": "dp-pp-tp"})",
                    R"({"train": {"dist": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2,
                        "pipeline_schedule": "zbv", "pipeline_num_layers": 4}}})",
                    R"({"parallel": {"pipeline": {"size": 2, "num_model_chunks": 2},
                        "tensor": {"size": 2, "mode": "1d"}}})"),
    [](const auto& info) { return std::string(kDialects[info.index]); });

}  // namespace
}  // namespace oslo::test
