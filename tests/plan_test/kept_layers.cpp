// A layer that is cut keeps its object and its class: what compares types goes on finding it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <map>
#include <set>
#include <sstream>
#include <string>
#include <typeinfo>

#include "parallelizers/modules/model_view.h"
#include "parallelizers/modules/module_tree.h"
#include "tests/support/error_of.h"
#include "tests/support/seeded.h"

namespace oslo {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;
using Module = torch::nn::Module;

/// One of every class of LibTorch's layers that has matrices, in every container. Which of them a
/// plan cuts, ModelView says.
struct EveryLayerImpl : Module {
  EveryLayerImpl() {
    namespace nn = torch::nn;
    const auto options = nn::EmbeddingOptions(11, 6);
    words = register_module("words", nn::Embedding(nn::EmbeddingOptions(options).padding_idx(0)));
    register_module("last_padded", nn::Embedding(nn::EmbeddingOptions(options).padding_idx(10)));
    register_module(
        "given",
        nn::Embedding(nn::EmbeddingOptions(options)._weight(torch::arange(66.0).view({11, 6}))));
    register_module("linear", nn::Linear(5, 7));
    register_module("bare", nn::Linear(nn::LinearOptions(7, 9).bias(false)));
    register_module("sequential", nn::Sequential(nn::Linear(9, 5), nn::Conv1d(5, 7, 3)));
    register_module("list", nn::ModuleList(nn::Conv2d(5, 7, 3), nn::Conv3d(5, 7, 3)));
    register_module("attention", nn::MultiheadAttention(12, 4));
    register_module("lstm", nn::LSTM(5, 6));
    register_module("gru", nn::GRU(5, 6));
    register_module("rnn", nn::RNN(5, 6));
    register_module("lstm_cell", nn::LSTMCell(5, 6));
    register_module("gru_cell", nn::GRUCell(5, 6));
    register_module("rnn_cell", nn::RNNCell(5, 6));
    register_module("bilinear", nn::Bilinear(3, 4, 5));
    register_module("bag", nn::EmbeddingBag(11, 6));
    register_module("transposed", nn::ConvTranspose1d(5, 7, 3));
    register_module("norm", nn::LayerNorm(nn::LayerNormOptions({6})));
  }
  torch::nn::Embedding words = nullptr;
};
TORCH_MODULE(EveryLayer);

std::string printed(const Module& module) {
  std::ostringstream text;
  text << module;
  return text.str();
}

/// What a program may see of a module.
struct Seen {
  const Module* object;
  const std::type_info* type;
  std::string name, text;
};

std::map<std::string, Seen> seen_in(EveryLayer& model) {
  std::map<std::string, Seen> seen;
  for (const auto& item : model->named_modules()) {
    Module& module = *item.value();
    seen[item.key()] = {&module, &typeid(module), module.name(), printed(module)};
  }
  return seen;
}

/// As public programs write it. Kinds of LibTorch that read sizes are refused by name.
void weights_init(Module& module) {
  const torch::NoGradGuard no_grad;
  if (typeid(module) == typeid(torch::nn::LinearImpl)) {
    auto* linear = module.as<torch::nn::Linear>();
    linear->weight.normal_(0.0, 0.02);
    if (linear->options.bias()) linear->bias.fill_(0.25);
  } else if (auto* embedding = dynamic_cast<torch::nn::EmbeddingImpl*>(&module)) {
    torch::nn::init::normal_(embedding->weight, 1.0, 0.5);
  } else if (module.name() == "torch::nn::Conv1dImpl") {
    torch::nn::init::uniform_(module.as<torch::nn::Conv1d>()->weight, -1, 1);
  } else {
    for (Tensor& parameter : module.parameters(/*recurse=*/false)) parameter.uniform_(-0.1, 0.1);
  }
}

/// Its other half, as a row of a cut table is gathered and nothing may communicate under the seed.
void zero_padding(Module& module) {
  const torch::NoGradGuard no_grad;
  auto* embedding = dynamic_cast<torch::nn::EmbeddingImpl*>(&module);
  if (embedding == nullptr || !embedding->options.padding_idx()) return;
  embedding->weight[*embedding->options.padding_idx()].zero_();
}

/// A plan that cuts all that can be cut.
std::string plan_of(const ModelView& view) {
  std::string plan;
  for (const ModuleView& entry : view.modules()) {
    if (!entry.layer) continue;
    const bool table = entry.layer->kind == LayerKind::embedding;
    plan += c10::str(plan.empty() ? "{" : ", ", '"', entry.path, R"(": ")",
                     table                    ? "vocab"
                     : entry.path == "linear" ? "row"
                                              : "column",
                     '"');
  }
  return plan + "}";
}

void expect_kept(const World& world, int tensor, int pipeline) {
  EveryLayer model = test::make_seeded(3, [] { return EveryLayer(); });
  EveryLayer reference = test::make_seeded(3, [] { return EveryLayer(); });
  const ModelView view(model.ptr());
  const auto before = seen_in(model);
  Config config = Config::parse(c10::str(R"({"plan": )", plan_of(view), "}"));
  config.set(c10::str("model_parallelism.tensor_parallel_size=", tensor));
  config.set(c10::str("model_parallelism.pipeline_parallel_size=", pipeline));
  InitializeOptions how;
  how.world = world;
  const ParallelModel parallel = initialize(model, config, how);

  const auto after = seen_in(model);
  ASSERT_EQ(after.size(), before.size());
  for (const auto& [path, seen] : before) {
    const Seen& now = after.at(path);
    EXPECT_EQ(now.object, seen.object) << path;
    EXPECT_TRUE(*now.type == *seen.type) << path;
    EXPECT_EQ(now.name, seen.name) << path;
    // LibTorch would compare a padding row beyond this rank's rows with them.
    if (path.empty() || path == "last_padded") continue;
    EXPECT_EQ(now.text, seen.text) << path;
  }
  std::map<std::string, const PlanEntry*> entries;
  const Plan plan = parallel.plan();
  for (const PlanEntry& entry : plan.entries) entries.emplace(entry.module, &entry);
  std::set<LayerKind> kinds;
  for (const ModuleView& entry : view.modules()) {
    if (!entry.layer) continue;
    kinds.insert(entry.layer->kind);
    const PlanEntry& line = *entries.at(entry.path);
    const Tensor& weight = entry.layer->weight.in_use();
    EXPECT_TRUE(is_placed(weight)) << entry.path;
    EXPECT_NE(line.local_shape, line.global_shape) << entry.path;
    EXPECT_EQ(line.module_before, class_name(*entry.module)) << entry.path;
    const char* expected =
        entry.layer->kind == LayerKind::embedding ? "oslo::nn::VocabParallelEmbedding"
        : entry.path == "linear"                  ? "oslo::nn::RowParallelLinear"
        : entry.layer->kind == LayerKind::linear  ? "oslo::nn::ColumnParallelLinear"
                                                  : line.module_before.c_str();
    EXPECT_EQ(line.module_after, expected) << entry.path;
    if (!is_here(weight)) continue;
    const auto copy = test::make_seeded(9, [&] { return entry.module->clone(); });  // it draws
    EXPECT_TRUE(typeid(*copy) == typeid(*entry.module)) << entry.path;
    const auto copied = copy->named_parameters();
    for (const auto& item : entry.module->named_parameters()) {
      const Tensor& own = item.value();
      EXPECT_FALSE(copied[item.key()].is_same(own)) << entry.path << " " << item.key();
      EXPECT_EQ(is_placed(copied[item.key()]), is_placed(own)) << entry.path << " " << item.key();
      EXPECT_TRUE(torch::equal(local_tensor(copied[item.key()]), local_tensor(own))) << entry.path;
    }
    std::stringstream file;
    EXPECT_THAT(test::error_of([&] { torch::save(entry.module, file); }),
                HasSubstr("only this rank's part"))
        << entry.path;
  }
  EXPECT_EQ(kinds, (std::set<LayerKind>{LayerKind::linear, LayerKind::embedding,
                                        LayerKind::convolution, LayerKind::transposed,
                                        LayerKind::attention, LayerKind::recurrent}));
  // What it draws after the cut, one device draws.
  test::make_seeded(5, [&] { return reference->apply(weights_init), 0; });
  test::make_seeded(5, [&] { return model->apply(weights_init), 0; });
  reference->words->apply(zero_padding);
  model->words->apply(zero_padding);
  const auto expected = reference->named_parameters();
  for (const auto& item : model->named_parameters()) {
    EXPECT_TRUE(torch::equal(full_tensor(item.value()).detach(), expected[item.key()].detach()))
        << item.key();
  }
}

TEST(KeptLayers, HaveTheirObjectsAndClassesWhateverIsCut) {
  for (const auto& [tensor, pipeline] : {std::pair(2, 1), std::pair(3, 1), std::pair(2, 2)}) {
    SCOPED_TRACE(c10::str("tensor ", tensor, " x pipeline ", pipeline));
    run_as_threads(tensor * pipeline, [tensor = tensor, pipeline = pipeline](World world) {
      at::set_num_threads(1);
      expect_kept(world, tensor, pipeline);
    });
  }
}

}  // namespace
}  // namespace oslo
