// The config's activation_checkpoint on models that nobody wrote for it.
#include "parallelizers/memory/recompute/layer_segments.h"
#include "tests/models/bert.h"
#include "tests/models/unet.h"
#include "tests/models/vit.h"
#include "tests/recomputation_test/gpt2.h"
#include "tests/recomputation_test/kept_sizes.h"
#include "tests/support/error_of.h"
#include "tests/support/initialized.h"
#include "tests/support/own_draws.h"
#include "tests/support/pipeline_parity.h"

namespace oslo::test {
namespace {

using torch::Tensor;

const std::vector<std::string>& forms() {
  static const std::vector<std::string> all = {
      R"("enabled": true)", R"("enabled": true, "every": 3)",
      R"("enabled": true, "modules": ["h.*.attn"])",
      R"("enabled": true, "keep": ["matmul", "attention"])"};
  return all;
}

std::string config_of(const std::string& form, int tensor = 1, int pipeline = 1) {
  return c10::str(R"({"model_parallelism": {"enable": true, "tensor_parallel_size": )", tensor,
                  R"(, "pipeline_parallel_size": )", pipeline, R"(}, "activation_checkpoint": {)",
                  form, "}}");
}

const LayerSegments& segments_of(const ParallelModel& parallel) {
  return dynamic_cast<const LayerSegments&>(*context_of(parallel.mpu().tensor_mesh())->observer);
}

int cut_segments(const ParallelModel& parallel) {
  int cut = 0;
  for (const SegmentReport& each : segments_of(parallel).report()) {
    EXPECT_EQ(each.not_cut, "") << each.name;
    cut += each.used && each.not_cut.empty() ? 1 : 0;
  }
  return cut;
}

TEST(RecomputedLayers, GPT2OnOneRankIsThePlainModelBitForBit) {
  at::set_num_threads(1);
  const Tensor tokens = torch::arange(14).view({2, 7});
  const auto make = [] { return make_seeded(3, [] { return models::GPT2(small_gpt2(4, 0.2)); }); };
  const auto train = [&](models::GPT2& model) {
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
    std::vector<Tensor> losses;
    const OwnDraws draws(5);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      const Tensor loss = loss_of_tokens(model->forward(tokens), tokens);
      losses.push_back(loss.detach());
      loss.backward();
      optimizer.step();
    }
    return losses;
  };
  models::GPT2 plain = make();
  const auto expected = train(plain);
  for (const std::string& form : forms()) {
    SCOPED_TRACE(form);
    run_as_threads(1, [&](World world) {
      at::set_num_threads(1);
      models::GPT2 model = make();
      const auto parallel = initialize(model, Config::parse(config_of(form)), in(world));
      const auto losses = train(model);
      for (size_t i = 0; i < losses.size(); ++i) EXPECT_TRUE(losses[i].equal(expected[i])) << i;
      EXPECT_EQ(cut_segments(parallel), form.find("every") == std::string::npos ? 4 : 2);
      for (const auto& item : plain->named_parameters()) {
        const Tensor ours = local_tensor(model->named_parameters()[item.key()]);
        EXPECT_TRUE(ours.equal(item.value())) << item.key();
      }
    });
  }
}

TEST(RecomputedLayers, KeepsTheInputsOfItsSegments) {
  run_as_threads(1, [](World world) {
    at::set_num_threads(1);
    const auto kept = [&](const std::string& config) { return kept_sizes(config, world); };
    const double plain = kept(R"({"model_parallelism": {"enable": true}})");
    const double all = kept(config_of(forms()[0])), keep = kept(config_of(forms()[3]));
    EXPECT_GT(plain, 4 * 14);
    EXPECT_LT(all, plain - 4 * 13);
    EXPECT_LT(keep, plain * 0.75);
  });
}

TEST(RecomputedLayers, OnRanksEqualOneDevice) {
  for (const std::string& form : forms()) {
    for (const int size : {2, 3}) {
      SCOPED_TRACE(form);
      parity::Setup setup;
      setup.world = size;
      setup.config = config_of(form, size);
      setup.example = true;
      setup.steps = 5;
      parity::expect_parity(
          setup, [] { return models::GPT2(small_gpt2(4)); },
          [](int) {
            const Tensor tokens = torch::randint(19, {4, 7});
            return parity::Batch{tokens, tokens};
          },
          loss_of_tokens,
          [&](const parity::Outcome& outcome) {
            EXPECT_EQ(cut_segments(outcome.parallel),
                      form.find("every") == std::string::npos ? 4 : 2);
          });
    }
  }
}

parity::Batch token_batch(int) {
  const Tensor tokens = torch::randint(19, {6, 7});
  return {tokens, tokens};
}

TEST(RecomputedLayers, BesideDistributedDataParallel) {
  for (const int tensor : {1, 2}) {
    parity::Setup setup;
    setup.world = 2 * tensor;
    setup.config = config_of(R"("enabled": true)", tensor);
    setup.example = true;
    parity::expect_parity(
        setup, [] { return models::GPT2(small_gpt2(4)); }, token_batch, loss_of_tokens,
        [&](const parity::Outcome& outcome) { EXPECT_EQ(cut_segments(outcome.parallel), 4); });
  }
}

struct StackImpl : torch::nn::Module {
  StackImpl() {
    for (int i = 0; i < 4; ++i) h->push_back(torch::nn::Linear(7, 7));
    register_module("h", h);
  }
  Tensor forward(Tensor x) {
    for (const auto& layer : *h) x = torch::gelu(layer->as<torch::nn::Linear>()->forward(x));
    return x;
  }
  torch::nn::ModuleList h;
};
TORCH_MODULE(Stack);

/// Nothing of the model comes behind its last layer, which is over there.
TEST(RecomputedLayers, ACollectiveOfTheProgramBehindTheModel) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    const auto make = [] { return make_seeded(3, [] { return Stack(); }); };
    Stack model = make(), plain = make();
    const auto parallel =
        initialize(model, Config::parse(config_of(R"("enabled": true)")), in(world));
    const Tensor x = torch::arange(14).view({2, 7}) * 0.1 + world.rank();
    const auto loss = [&](Stack& own) {
      const Tensor y = own->forward(x);
      std::vector<Tensor> shown{y.detach().mean()};
      parallel.mpu().data_group()->process_group()->allreduce(shown)->wait();
      return (y * shown[0]).square().sum();
    };
    for (int step = 0; step < 2; ++step) {
      loss(model).backward();
      loss(plain).backward();
    }
    EXPECT_EQ(cut_segments(parallel), 4);
    for (const auto& item : plain->named_parameters()) {
      const Tensor own = local_tensor(model->named_parameters()[item.key()].grad());
      EXPECT_TRUE(own.equal(item.value().grad())) << item.key();
    }
  });
}

TEST(RecomputedLayers, OnPipelineStages) {
  for (const std::string kind : {"1f1b", "zero_bubble", "interleaved"}) {
    for (const pipeline_parity::Grid grid :
         {pipeline_parity::Grid{1, 1, 2}, pipeline_parity::Grid{1, 2, 2}}) {
      if (kind == "interleaved" && grid.tensor > 1) continue;
      SCOPED_TRACE(kind + " " + grid.name());
      pipeline_parity::Trial trial;
      trial.steps = 2;
      trial.grid = grid;
      trial.kind = kind;
      const std::string plain = pipeline_parity::config_of(grid, kind);
      trial.config =
          plain.substr(0, plain.size() - 1) + R"(, "activation_checkpoint": {"enabled": true}})";
      pipeline_parity::expect_parity(
          trial, [] { return models::GPT2(small_gpt2(4)); },
          [](int) {
            return std::vector<Tensor>{torch::randint(19, {8, 7})};
          },
          [](models::GPT2& model, const std::vector<Tensor>& micro) {
            return loss_of_tokens(model->forward(micro[0]), micro[0]);
          },
          [](const pipeline_parity::Outcome& outcome) {
            EXPECT_EQ(cut_segments(outcome.parallel), 4);
          });
    }
  }
}

/// Trains a plain model and one with recomputation, on one rank: the same, bit for bit.
template <typename Make, typename Loss>
void expect_same_bits(const Make& make, const Loss& loss, const std::string& form) {
  SCOPED_TRACE(form);
  const auto train = [&](auto& model) {
    torch::optim::SGD optimizer(model->parameters(), 1e-2);
    const OwnDraws draws(5);
    for (int step = 0; step < 5; ++step) {
      optimizer.zero_grad();
      loss(model).backward();
      optimizer.step();
    }
  };
  run_as_threads(1, [&](World world) {
    at::set_num_threads(1);
    auto plain = make_seeded(3, make), model = make_seeded(3, make);
    train(plain);
    const auto parallel = initialize(model, Config::parse(config_of(form)), in(world));
    train(model);
    EXPECT_GT(cut_segments(parallel), 0);
    const auto ours = model->named_parameters();
    for (const auto& item : plain->named_parameters()) {
      const Tensor mine = local_tensor(ours[item.key()]);
      EXPECT_TRUE(mine.equal(item.value()))
          << item.key() << " differs by " << (mine - item.value()).abs().max();
    }
    for (const auto& item : plain->named_buffers()) {
      EXPECT_TRUE(model->named_buffers()[item.key()].equal(item.value())) << item.key();
    }
  });
}

TEST(RecomputedLayers, OtherModelsBitForBit) {
  namespace F = torch::nn::functional;
  const Tensor images = make_seeded(9, [] { return torch::randn({4, 3, 12, 12}); });
  const Tensor noisy = make_seeded(9, [] { return torch::randn({4, 2, 8, 8}); });
  const Tensor condition = make_seeded(10, [] { return torch::randn({4, 6}); });
  const Tensor words = make_seeded(9, [] { return torch::randint(1, 30, {4, 9}); });
  for (const std::string form :
       {R"("enabled": true)", R"("enabled": true, "every": 2)",
        R"("enabled": true, "keep": ["matmul", "convolution", "attention"])"}) {
    expect_same_bits([] { return models::VisionTransformer(); },
                     [&](auto& model) { return model->forward(images).pow(2).sum(); }, form);
    expect_same_bits(
        [] { return models::unet::UNet(); },
        [&](auto& model) {
          return F::mse_loss(model->forward(noisy, condition), torch::ones({4, 3, 8, 8}));
        },
        form);
    expect_same_bits([] { return models::Bert(models::BertOptions()); },
                     [&](auto& model) { return model->forward(words).pow(2).sum(); }, form);
  }
}

/// A list of blocks, of which one does what cannot be run again.
struct OddBlockImpl : torch::nn::Module {
  explicit OddBlockImpl(bool odd)
      : odd(odd), layer(register_module("layer", torch::nn::Linear(6, 6))) {}
  Tensor forward(const Tensor& x) {
    Tensor h = layer->forward(x);
    if (odd) {
      const Tensor scale = h.detach().clone();
      float* const memory = scale.data_ptr<float>();
      for (int64_t i = 0; i < scale.numel(); ++i) memory[i] = 0.5F * static_cast<float>(i % 3);
      h = h * scale;
    }
    return torch::tanh(h);
  }
  bool odd;
  torch::nn::Linear layer;
};
TORCH_MODULE(OddBlock);

struct OddImpl : torch::nn::Module {
  OddImpl() {
    for (const bool odd : {false, true, false}) h->push_back(OddBlock(odd));
  }
  Tensor forward(Tensor x) {
    for (const auto& block : *h) x = block->as<OddBlock>()->forward(x);
    return x;
  }
  torch::nn::ModuleList h = register_module("h", torch::nn::ModuleList());
};
TORCH_MODULE(Odd);

TEST(RecomputedLayers, WhatDoesNotGiveTheSameAgainIsNotCutAndThePlanSaysSo) {
  run_as_threads(1, [](World world) {
    const Tensor x = make_seeded(9, [] { return torch::randn({3, 6}); });
    auto plain = make_seeded(3, [] { return Odd(); }), model = make_seeded(3, [] { return Odd(); });
    const auto parallel =
        initialize(model, Config::parse(config_of(R"("enabled": true)")), in(world));
    for (auto* each : {&plain, &model}) (*each)->forward(x).sum().backward();
    for (const auto& item : plain->named_parameters()) {
      const Tensor ours = model->named_parameters()[item.key()].grad();
      EXPECT_TRUE(local_tensor(ours).equal(item.value().grad())) << item.key();
    }
    const auto report = segments_of(parallel).report();
    ASSERT_EQ(report.size(), 3);
    EXPECT_EQ(report[0].not_cut, "");
    EXPECT_THAT(report[1].not_cut, testing::HasSubstr("fills memory by a pointer"));
    EXPECT_THAT(parallel.plan().to_string(), testing::HasSubstr("h.1"));
    EXPECT_EQ(parallel.plan().to_json()["recomputation"].size(), 3);
  });
}

TEST(RecomputedLayers, PatternsAreChecked) {
  run_as_threads(1, [](World world) {
    const auto error = [&](const std::string& modules) {
      auto model = make_seeded(3, [] { return models::GPT2(small_gpt2(4)); });
      const auto config =
          Config::parse(config_of(R"("enabled": true, "modules": [)" + modules + "]"));
      return error_of([&] { initialize(model, config, in(world)); });
    };
    EXPECT_THAT(error(R"("g.*")"), testing::HasSubstr("\"g.*\" matches no module"));
    EXPECT_THAT(error(R"("h.*", "h.*.attn")"), testing::HasSubstr("h.0.attn lies in h.0"));
    EXPECT_THAT(error(R"("h.*.dropout")"), testing::HasSubstr("has a parameter"));
  });
}

}  // namespace
}  // namespace oslo::test
