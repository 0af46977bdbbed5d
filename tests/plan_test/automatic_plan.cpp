// The plan that finds itself: Megatron's counts on the models it is known for, never more bytes
// than the structural plan, the model and the random states as before, the same on every rank.
#include "parallelizers/plan/search/automatic_plan.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <set>

#include "parallelizers/plan/layers/structural_plan.h"
#include "tests/models/bert.h"
#include "tests/models/gpt2.h"
#include "tests/models/in_place_views.h"
#include "tests/models/llama.h"
#include "tests/models/lstm_tagger.h"
#include "tests/models/mixture_of_experts.h"
#include "tests/models/t5.h"
#include "tests/models/vit.h"
#include "tests/support/error_of.h"
#include "tests/support/initialized.h"
#include "tests/support/parity.h"

namespace oslo {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Planned {
  std::vector<LayerPlan> layers;
  PlanSearch search;

  const LayerPlan& at(const std::string& path) const {
    for (const LayerPlan& layer : layers) {
      if (layer.path == path) return layer;
    }
    fail("no layer ", path);
  }
  Style style(const std::string& path) const { return at(path).style.style; }
};

template <typename Model>
Planned planned(Model& model, int ranks, const std::function<void()>& example,
                bool cut_own_parameters = false) {
  Planned result{plannable_layers(model.ptr()), {}};
  plan_by_structure(result.layers);
  follow_ties(result.layers);
  FirstWrites writes;
  result.search =
      plan_automatically(result.layers, model.ptr(), ranks, example, writes, cut_own_parameters);
  return result;
}

/// Bytes of `count` all-reduces of `elements` floats over `ranks`, as one rank receives them.
int64_t all_reduces(int64_t count, int64_t elements, int ranks) {
  return count * (2 * (ranks - 1) * elements / ranks) * 4;
}

TEST(AutomaticPlan, Gpt2IsMegatrons) {
  models::GPT2Options options;
  models::GPT2 model(options);
  const auto tokens = torch::randint(options.vocabulary, {2, 8});
  const auto plan = planned(model, 4, [&] { model->forward(tokens); });
  EXPECT_EQ(plan.style("wte"), Style::vocab);
  EXPECT_EQ(plan.style("wpe"), Style::replicate);
  for (const std::string block : {"h.0.", "h.1."}) {
    EXPECT_EQ(plan.style(block + "attn.c_attn"), Style::column);
    EXPECT_EQ(plan.at(block + "attn.c_attn").style.blocks, 3);
    EXPECT_EQ(plan.style(block + "attn.c_proj"), Style::row);
    EXPECT_EQ(plan.style(block + "c_fc"), Style::column);
    EXPECT_EQ(plan.style(block + "c_proj"), Style::row);
  }
  // Four all-reduces a layer, one of the embedding, one of the tied head's input.
  EXPECT_EQ(plan.search.found.bytes,
            all_reduces(4 * options.layers + 2, 2 * 8 * options.hidden, 4));
  EXPECT_EQ(plan.search.found.gathers, 0);
  EXPECT_THAT(plan.at("h.0.c_fc").why, AllOf(HasSubstr("column"), HasSubstr("row would move")));
}

/// A GPT block whose author named nothing as others do, second projections first.
struct StrangeImpl : torch::nn::Module {
  StrangeImpl() {
    back = register_module("alpha", torch::nn::Linear(96, 24));
    forth = register_module("beta", torch::nn::Linear(24, 96));
    mix = register_module("gamma", torch::nn::Linear(24, 72));
    merge = register_module("delta", torch::nn::Linear(24, 24));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto parts = mix(x).view({x.size(0), x.size(1), 4, 18}).transpose(1, 2).chunk(3, -1);
    const auto y = (parts[0].matmul(parts[1].transpose(-1, -2)) / 3).softmax(-1).matmul(parts[2]);
    const auto h = x + merge(y.transpose(1, 2).reshape(x.sizes()));
    return h + back(torch::gelu(forth(h)));
  }
  torch::nn::Linear back{nullptr}, forth{nullptr}, mix{nullptr}, merge{nullptr};
};
TORCH_MODULE(Strange);

TEST(AutomaticPlan, NamesDoNotMatter) {
  Strange model;
  const auto x = torch::randn({2, 5, 24});
  EXPECT_EQ(planned(model, 3, [&] { model->forward(x); }).at("gamma").style.unit, 18);  // a head
  const auto plan = planned(model, 2, [&] { model->forward(x); });
  EXPECT_EQ(plan.style("alpha"), Style::row);
  EXPECT_EQ(plan.style("beta"), Style::column);
  EXPECT_EQ(plan.style("gamma"), Style::column);
  EXPECT_EQ(plan.style("delta"), Style::row);
  EXPECT_EQ(plan.search.found.gathers, 0);
  // x needs no gradient: the first all-reduce of Megatron's four has nothing to reduce.
  EXPECT_EQ(plan.search.found.bytes, all_reduces(3, 2 * 5 * 24, 2));
  EXPECT_LT(plan.search.found.bytes, plan.search.structural.bytes);
}

TEST(AutomaticPlan, TransformerEncoderByHeads) {
  torch::nn::TransformerEncoder model(
      torch::nn::TransformerEncoderLayer(
          torch::nn::TransformerEncoderLayerOptions(48, 4).dim_feedforward(96).dropout(0)),
      2);
  const auto x = torch::randn({5, 2, 48}).requires_grad_();
  const auto plan = planned(model, 3, [&] { model->forward(x); });
  EXPECT_EQ(plan.search.found.gathers, 0);
  // Megatron's eight, and LibTorch's mean of the attention weights over the heads, which
  // MultiheadAttention returns and the encoder drops.
  EXPECT_EQ(plan.search.found.bytes, all_reduces(8, 5 * 2 * 48, 3) + all_reduces(2, 2 * 5 * 5, 3));
  EXPECT_EQ(plan.at("layers.0.self_attn").style.blocks, 3);
  EXPECT_EQ(plan.at("layers.0.self_attn").style.unit, 12);
}

TEST(AutomaticPlan, VisionTransformerIsMegatrons) {
  for (const int ranks : {2, 3, 4}) {
    models::VisionTransformer model;  // 2 layers of 36, 4 heads; 9 patches and a class; 7 classes
    const auto images = torch::randn({4, 3, 12, 12});
    const auto plan = planned(model, ranks, [&] { model->forward(images); });
    EXPECT_EQ(plan.search.found.gathers, 0) << ranks;
    // As above; the head of two layers adds its output and, in backward, its input.
    EXPECT_EQ(plan.search.found.bytes,
              all_reduces(8, 4 * 10 * 36, ranks) + all_reduces(2, 4 * 10 * 10, ranks) +
                  all_reduces(1, 4 * 7, ranks) + all_reduces(1, 4 * 36, ranks))
        << ranks;
    EXPECT_EQ(plan.style("patch_embed"), Style::replicate);
  }
}

TEST(AutomaticPlan, LlamaIsMegatrons) {
  for (const int ranks : {2, 3}) {
    const models::LlamaOptions options;
    models::Llama model(options);
    const auto tokens = torch::randint(options.vocabulary, {2, 7});
    const auto plan = planned(model, ranks, [&] { model->forward(tokens); });
    EXPECT_EQ(plan.search.found.gathers, 0) << ranks;
    EXPECT_EQ(plan.search.found.bytes,
              all_reduces(4 * options.layers + 2, 2 * 7 * options.hidden, ranks))
        << ranks;
  }
}

TEST(AutomaticPlan, BertIsMegatrons) {
  for (const int ranks : {2, 3, 4}) {
    const models::BertOptions options;
    models::Bert model(options);
    const auto words = torch::randint(50, {2, 7});
    const auto plan = planned(model, ranks, [&] { model->forward(words); });
    EXPECT_EQ(plan.search.found.gathers, 0) << ranks;
    // The pooler and the classifier on it reduce once each way.
    EXPECT_EQ(plan.search.found.bytes,
              all_reduces(4 * options.layers + 1, 2 * 7 * options.hidden, ranks) +
                  all_reduces(1, 2 * options.hidden, ranks) +
                  all_reduces(1, 2 * options.labels, ranks))
        << ranks;
  }
}

TEST(AutomaticPlan, T5IsMegatrons) {
  for (const int ranks : {2, 4}) {
    const models::T5Config config;
    models::T5 model(config);
    const auto words = torch::randint(50, {2, 9}), answer = torch::randint(50, {2, 5});
    const auto plan = planned(model, ranks, [&] {
      model->forward(words, torch::ones({2, 9}), answer);
    });
    EXPECT_EQ(plan.search.found.gathers, 0) << ranks;
    // Encoder: four a layer, its embedding, and backward what the decoder's keys and values, all
    // from one output, leave. Decoder: six a layer, its embedding, the head's input.
    EXPECT_EQ(plan.search.found.bytes,
              all_reduces(4 * config.num_layers + 2, 2 * 9 * config.d_model, ranks) +
                  all_reduces(6 * config.num_layers + 2, 2 * 5 * config.d_model, ranks))
        << ranks;
  }
}

TEST(AutomaticPlan, NeverMovesMoreThanTheStructuralPlan) {
  for (const int ranks : {2, 3, 4, 8}) {
    models::Bert bert{models::BertOptions()};
    const auto words = torch::randint(50, {2, 7});
    const auto of_bert = planned(bert, ranks, [&] { bert->forward(words); }).search;
    EXPECT_LE(of_bert.found.bytes, of_bert.structural.bytes) << ranks;
    models::LlamaOptions options;
    options.repeat_kv = ranks % 2 == 0;
    models::Llama llama(options);
    const auto of_llama = planned(llama, ranks, [&] { llama->forward(words); }).search;
    EXPECT_LE(of_llama.found.bytes, of_llama.structural.bytes) << ranks;
  }
}

TEST(AutomaticPlan, FrozenWeightsCostNoBackward) {
  models::GPT2Options options;
  models::GPT2 model(options);
  for (auto& parameter : model->parameters()) parameter.set_requires_grad(false);
  const auto tokens = torch::randint(options.vocabulary, {2, 8});
  const auto plan = planned(model, 2, [&] { model->forward(tokens); });
  EXPECT_EQ(plan.search.found.bytes,
            all_reduces(2 * options.layers + 1, 2 * 8 * options.hidden, 2));
}

/// Reads values, keeps running statistics and a counter, draws random numbers.
struct RestlessImpl : torch::nn::Module {
  RestlessImpl() {
    up = register_module("up", torch::nn::Linear(8, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    down = register_module("down", torch::nn::Linear(16, 8));
    calls = register_buffer("calls", torch::zeros({}, torch::kLong));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    calls.add_(1);
    auto y = norm(up(x)) + torch::rand({16});
    if (y.abs().max().item<float>() > 1e6) y = y / 2;
    return down(torch::dropout(y, 0.1, true));
  }
  torch::nn::Linear up{nullptr}, down{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor calls;
};
TORCH_MODULE(Restless);

TEST(AutomaticPlan, LeavesNoTraceAndNamesWhatReadValues) {
  torch::manual_seed(3);
  Restless model;
  const auto x = torch::randn({4, 8});
  std::vector<torch::Tensor> before, handles = model->parameters();
  for (const auto& buffer : model->buffers()) handles.push_back(buffer);
  for (const auto& tensor : handles) before.push_back(tensor.detach().clone());
  const auto next = [] { return torch::rand({2}); };
  torch::manual_seed(5);
  const auto expected = next();
  torch::manual_seed(5);
  const auto plan = planned(model, 2, [&] { model->forward(x); });
  EXPECT_TRUE(torch::equal(next(), expected));
  for (size_t i = 0; i < handles.size(); ++i) {
    EXPECT_TRUE(torch::equal(handles[i], before[i])) << i;
    EXPECT_FALSE(is_placed(handles[i])) << i;
    EXPECT_FALSE(handles[i].grad().defined()) << i;
  }
  EXPECT_THAT(plan.search.value_readers, testing::ElementsAre("aten::_local_scalar_dense"));
  EXPECT_EQ(plan.style("up"), Style::column);
  EXPECT_EQ(plan.style("down"), Style::row);
}

TEST(AutomaticPlan, AskedForLayersStay) {
  models::GPT2 model{models::GPT2Options()};
  const auto tokens = torch::randint(60, {2, 8});
  InitializeOptions how;
  how.world = World::fake(0, 2);
  how.example_inputs = [&] { model->forward(tokens); };
  const auto config = Config::parse(
      R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 2},
          "plan": {"h.*.c_fc": "row"}})");
  for (const auto& entry : initialize(model, config, how).plan().entries) {
    if (entry.parameter != "h.1.c_fc.weight") continue;
    EXPECT_EQ(entry.placement, "row: shard(1)");
  }
}

/// An MLP of matrices of its own; one that reads how large they are.
struct RawImpl : torch::nn::Module {
  explicit RawImpl(bool reads = false) : reads_sizes(reads) {
    up = register_parameter("up", torch::randn({24, 96}));
    down = register_parameter("down", torch::randn({96, 24}));
    scale = register_parameter("scale", torch::ones({24}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = torch::gelu(torch::matmul(x * scale, up));
    if (reads_sizes) h = h / std::sqrt(double(up.numel()));
    return x + torch::einsum("bth,hc->btc", {h, down});
  }
  bool reads_sizes;
  torch::Tensor up, down, scale;
};
TORCH_MODULE(Raw);

TEST(AutomaticPlan, ParametersOutsideOfLayers) {
  Raw model;
  const auto x = torch::randn({2, 5, 24});
  const auto example = [&] { model->forward(x); };
  for (const char* path : {"up", "down"}) {
    EXPECT_EQ(planned(model, 2, example).style(path), Style::replicate);
  }
  const auto plan = planned(model, 2, example, /*cut_own_parameters=*/true);
  EXPECT_EQ(plan.search.structural.bytes, 0);  // leaves them whole
  EXPECT_EQ(plan.at("up").weight_placement().to_string(), "shard(1)");
  EXPECT_EQ(plan.at("down").weight_placement().to_string(), "shard(0)");
  EXPECT_EQ(plan.search.found.bytes, all_reduces(2, 2 * 5 * 24, 2));
  EXPECT_EQ(plan.search.found.gathers, 0);
}

TEST(AutomaticPlan, AParameterWhoseSizesAreReadStaysWhole) {
  Raw model(true);
  const auto x = torch::randn({2, 5, 24});
  const auto plan = planned(
      model, 2, [&] { model->forward(x); }, /*cut_own_parameters=*/true);
  EXPECT_EQ(plan.style("up"), Style::replicate);
  EXPECT_THAT(plan.at("up").why, HasSubstr("shard(1) cannot be used"));
  EXPECT_EQ(plan.style("down"), Style::shard);
}

TEST(AutomaticPlan, ParametersOnRequest) {
  const auto placed = [](const std::string& plan) {
    InitializeOptions how;
    how.world = World::fake(0, 2);
    const auto config = Config::parse(
        R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 2}, "plan": )" + plan +
        "}");
    std::string placements;
    for (const auto& entry : initialize(Raw(), config, how).plan().entries) {
      placements += entry.parameter + " " + entry.placement + "; ";
    }
    return placements;
  };
  EXPECT_EQ(placed(R"json({"up": "shard(1) blocks=3", "down": "shard(0)"})json"),
            "up shard(1, blocks 3); down shard(0); scale replicate; ");
  EXPECT_EQ(placed("{}"), "up replicate; down replicate; scale replicate; ");
  const auto error = [&](const std::string& plan) { return test::error_of([&] { placed(plan); }); };
  EXPECT_THAT(error(R"({"up": "column"})"), HasSubstr("up is a parameter, not a layer"));
  EXPECT_THAT(error(R"json({"up": "shard(2)"})json"), HasSubstr("up has 2 dimensions"));
  EXPECT_THAT(error(R"({"*": "row"})"), HasSubstr("matches no layer or parameter"));
  EXPECT_THAT(error(R"json({"up": "shard(x)"})json"), HasSubstr("expected one of column"));
}

/// Sizes that values decide, lengths that must be on the CPU, writes into results kept elsewhere.
TEST(AutomaticPlan, ExamplesThatLookAtValues) {
  models::MixtureOfExperts mixture;
  const auto tokens = torch::randint(40, {2, 6});
  const auto of_mixture = planned(mixture, 2, [&] { mixture->forward(tokens); }).search;
  EXPECT_EQ(of_mixture.found.gathers, 0);
  EXPECT_LT(of_mixture.found.bytes, of_mixture.structural.bytes);
  models::tagger::LstmTagger tagger{models::tagger::Options()};
  const auto of_tagger = planned(tagger, 2, [&] { tagger->forward(tokens % 30 + 1); }).search;
  EXPECT_EQ(of_tagger.found.gathers, 0);
  models::in_place::InPlace writer;
  const auto x = torch::randn({4, 7});
  const auto of_writer = planned(writer, 2, [&] { writer->forward(x); }).search;
  EXPECT_LE(of_writer.found.bytes, of_writer.structural.bytes);
}

TEST(AutomaticPlan, RanksWhoseExamplesDifferAreToldSo) {
  std::mutex mutex;
  std::vector<std::string> errors;
  run_as_threads(2, [&](World world) {
    Strange model = parity::make_seeded(1, [] { return Strange(); });
    InitializeOptions how = test::in(world);
    // One rank's example never meets half of the model.
    how.example_inputs = [&] {
      const auto x = torch::ones({2, 5, 24});
      if (world.rank() == 0) model->forward(x);
      if (world.rank() == 1) model->back(model->forth(model->back(torch::ones({2, 96}))));
    };
    try {
      initialize(model, Config::parse(parity::tensor_parallel(2)), how);
    } catch (const Error& error) {
      const std::lock_guard<std::mutex> lock(mutex);
      errors.emplace_back(error.what());
    }
  });
  ASSERT_EQ(errors.size(), 2);
  for (const auto& error : errors) EXPECT_THAT(error, HasSubstr("the plan"));
}

}  // namespace
}  // namespace oslo
