// Stages that models say by themselves: LiBai's layer_idx of a layer, and set_pipeline_stage_id of
// a class.
#include <gmock/gmock.h>
#include <oslo_cpp/oslo.h>

#include <map>
#include <string>
#include <vector>

#include "tests/support/error_of.h"
#include "tests/support/errors_of.h"
#include "tests/support/initialized.h"
#include "tests/support/seeded.h"

namespace oslo::test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using Stages = std::map<std::string, int>;

struct LayerImpl : torch::nn::Module, oslo::LayerIdx {
  explicit LayerImpl(std::optional<int> layer_idx)
      : oslo::LayerIdx(layer_idx), fc(register_module("fc", torch::nn::Linear(3, 3))) {}
  torch::Tensor forward(const torch::Tensor& x) { return torch::tanh(fc(x)); }
  torch::nn::Linear fc;
};
TORCH_MODULE(Layer);

/// Four layers, a norm before them and a head behind.
struct StackImpl : torch::nn::Module {
  explicit StackImpl(std::vector<std::optional<int>> indices)
      : norm(register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({3})))),
        h(register_module("h", torch::nn::ModuleList())),
        head(register_module("head", torch::nn::Linear(3, 2))) {
    for (const auto& layer_idx : indices) h->push_back(Layer(layer_idx));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = norm(x);
    for (const auto& layer : *h) x = layer->as<Layer>()->forward(x);
    return head(x);
  }
  torch::nn::LayerNorm norm;
  torch::nn::ModuleList h;
  torch::nn::Linear head;
};
TORCH_MODULE(Stack);

/// The same with a class that has something to say: the norm with the head, the head first.
struct HookedImpl : StackImpl {
  using StackImpl::StackImpl;
  static void set_pipeline_stage_id(HookedImpl& model, StageAssignment& stages) {
    stages.set_layer_idx(model.norm, -1).set_pipeline_stage_id(model.head, 0);
  }
};
TORCH_MODULE(Hooked);

const std::vector<std::optional<int>> kNone(4);
constexpr const char* kTwoStages = R"({"parallel": {"pipeline": 2}})";

Stages stages_in(const ParallelModel& parallel) {
  Stages found;
  for (const PlanEntry& entry : parallel.plan().entries) found[entry.parameter] = entry.stage;
  return found;
}

template <typename Make>
Stages stages_of(const Make& make, const std::string& config = kTwoStages,
                 const std::function<void(InitializeOptions&)>& tweak = {}) {
  Stages found;
  run_as_threads(2, [&](World world) {
    const auto model = make_seeded(3, make);
    InitializeOptions how = in(world);
    if (tweak) tweak(how);
    const ParallelModel parallel = initialize(model, Config::parse(config), how);
    if (world.rank() == 0) found = stages_in(parallel);
  });
  return found;
}

TEST(LayerIdx, OfAModuleDecidesTheStageOfAllBeneathIt) {
  Stages stages = stages_of([] { return Stack(kNone); });
  EXPECT_EQ(stages["h.1.fc.weight"], 0);
  stages = stages_of([] {
    return Stack(std::vector<std::optional<int>>{std::nullopt, -1, std::nullopt, 0});
  });
  EXPECT_EQ(stages["h.0.fc.weight"], 0);
  EXPECT_EQ(stages["h.1.fc.weight"], 1);
  EXPECT_EQ(stages["h.2.fc.bias"], 1);
  EXPECT_EQ(stages["h.3.fc.weight"], 0);
}

TEST(LayerIdx, ThatTheModelDoesNotHaveIsRefusedByNameOnEveryRank) {
  EXPECT_THAT(errors_of(2,
                        [](World world) {
                          auto model = make_seeded(3, [] {
                            return Stack(std::vector<std::optional<int>>{0, 1, 2, 4});
                          });
                          initialize(model, Config::parse(kTwoStages), in(world));
                        }),
              Each(AllOf(HasSubstr("layer_idx of a module: set_layer_idx(h.3, 4)"),
                         HasSubstr("has 4 layers"))));
}

TEST(LayerIdx, SaysNothingWithoutAPipeline) {
  run_as_threads(2, [](World world) {
    auto model = make_seeded(3, [] { return Stack(std::vector<std::optional<int>>{9, 9, 9, 9}); });
    const ParallelModel parallel = initialize(model, Config(), in(world));
    EXPECT_EQ(parallel.get_layer_stage_id(-1), 0);
    EXPECT_EQ(parallel.get_layer_stage_id(3), 0);
  });
}

/// `self.head = Linear(embed_dim, num_classes, layer_idx=-1)`: cut by initialize, as it says.
TEST(LayerIdx, OfAParallelLayerLeavesItToInitialize) {
  run_as_threads(4, [](World world) {
    const MPU mpu(world, MpuOptions().tensor_parallel_size(2).pipeline_parallel_size(2));
    struct NetImpl : torch::nn::Module {
      explicit NetImpl(const MPU& mpu)
          : a(register_module(
                "a", nn::Linear(nn::LinearOptions(3, 5).parallel("row").layer_idx(-1), mpu))),
            b(register_module(
                "b", nn::Linear(nn::LinearOptions(5, 7).parallel("col").layer_idx(0), mpu))) {}
      nn::Linear a, b;
    };
    const auto net = make_seeded(3, [&] { return std::make_shared<NetImpl>(mpu); });
    EXPECT_FALSE(is_placed(net->a->weight));
    EXPECT_EQ(net->a->weight.sizes(), (std::vector<int64_t>{5, 3}));
    const auto config =
        Config::parse(R"({"parallel": {"pipeline": 2, "tensor": {"size": 2, "mode": "1d"}}})");
    const ParallelModel parallel = initialize(net, config, in(world));
    const Stages stages = stages_in(parallel);
    EXPECT_EQ(stages.at("a.weight"), 1);
    EXPECT_EQ(stages.at("b.weight"), 0);
    std::map<std::string, std::string> cut;
    for (const PlanEntry& entry : parallel.plan().entries) cut[entry.parameter] = entry.placement;
    EXPECT_THAT(cut.at("a.weight"), HasSubstr("row"));
    EXPECT_THAT(cut.at("b.weight"), HasSubstr("column"));
    if (is_here(net->b->weight)) {
      EXPECT_EQ(net->b->weight.size(0), mpu.get_tensor_parallel_rank() == 0 ? 4 : 3);
    }
  });
}

/// Without a layer_idx it is cut at once, and nothing can say where it lies.
TEST(LayerIdx, IsWhatAPipelineAsksOfLayersThatWereCutByHand) {
  EXPECT_THAT(
      errors_of(
          4,
          [](World world) {
            const MPU mpu(world, MpuOptions().tensor_parallel_size(2).pipeline_parallel_size(2));
            auto net = make_seeded(3, [&] {
              return torch::nn::Sequential(nn::Linear(nn::LinearOptions(3, 5).parallel("col"), mpu),
                                           torch::nn::Linear(5, 2));
            });
            initialize(net, Config::parse(R"({"parallel": {"pipeline": 2,
                                         "tensor": {"size": 2, "mode": "1d"}}})"),
                       in(world));
          }),
      Each(AllOf(HasSubstr("0.weight is cut already"), HasSubstr("layer_idx(-1)"))));
}

TEST(ClassStages, AreFoundWithoutACall) {
  Stages plain = stages_of([] { return Stack(kNone); });
  EXPECT_EQ(plain["norm.weight"], 0);
  EXPECT_EQ(plain["head.weight"], 1);
  Stages holder = stages_of([] { return Hooked(kNone); });
  EXPECT_EQ(holder["norm.weight"], 1);
  EXPECT_EQ(holder["head.weight"], 0);
  EXPECT_EQ(holder, stages_of([] { return std::make_shared<HookedImpl>(kNone); }));
}

TEST(ClassStages, OverrideLayerIndicesAndOptionsOverrideThem) {
  struct StrongImpl : StackImpl {
    StrongImpl() : StackImpl({3, 3, 3, 3}) {}
    static void set_pipeline_stage_id(StrongImpl& model, StageAssignment& stages) {
      stages.set_pipeline_stage_id(model.h, 0);
    }
  };
  Stages stages = stages_of([] { return std::make_shared<StrongImpl>(); });
  EXPECT_EQ(stages["h.0.fc.weight"], 0);
  EXPECT_EQ(stages["h.3.fc.weight"], 0);
  run_as_threads(2, [](World world) {
    const auto model = make_seeded(3, [] { return std::make_shared<StrongImpl>(); });
    InitializeOptions how = in(world);
    how.stages.set_pipeline_stage_id(model->h->ptr(2), 1);
    Stages overridden = stages_in(initialize(model, Config::parse(kTwoStages), how));
    EXPECT_EQ(overridden["h.1.fc.weight"], 0);
    EXPECT_EQ(overridden["h.2.fc.weight"], 1);
  });
}

TEST(ClassStages, AreFoundByAnEngineAndByReshard) {
  run_as_threads(2, [](World world) {
    auto model = make_seeded(3, [] { return Hooked(kNone); });
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    const std::vector<torch::data::Example<>> batches;
    auto [engine, loader] = initialize(model, optimizer, torch::nn::MSELoss(), batches,
                                       Config::parse(kTwoStages), in(world));
    EXPECT_EQ(stages_in(engine.parallel()).at("head.weight"), 0);
  });
  run_as_threads(2, [](World world) {
    auto model = make_seeded(3, [] { return Hooked(kNone); });
    ParallelModel parallel = initialize(model, Config(), in(world));
    parallel.reshard(Config::parse(kTwoStages));
    EXPECT_EQ(stages_in(parallel).at("head.weight"), 0);
  });
}

TEST(ClassStages, WhatThereIsNotIsRefusedByNameOnEveryRank) {
  struct WrongImpl : StackImpl {
    WrongImpl() : StackImpl(kNone) {}
    static void set_pipeline_stage_id(WrongImpl& model, StageAssignment& stages) {
      stages.set_pipeline_stage_id(model.head, 2);
    }
  };
  EXPECT_THAT(errors_of(2,
                        [](World world) {
                          initialize(make_seeded(3, [] { return std::make_shared<WrongImpl>(); }),
                                     Config::parse(kTwoStages), in(world));
                        }),
              Each(AllOf(HasSubstr("set_pipeline_stage_id of the model's class"),
                         HasSubstr("set_pipeline_stage_id(head, 2)"), HasSubstr("2 stages"))));
}

/// 24 layers on 4 stages: 6, 7, 7, 4; by ids otherwise; -1 is the last layer.
TEST(GetLayerStageId, IsLiBaisRuleOrTheConfigsIds) {
  const auto ids = [](const std::string& more) {
    std::vector<int> found;
    run_as_threads(4, [&](World world) {
      auto model = make_seeded(3, [] { return Stack(std::vector<std::optional<int>>(24)); });
      const auto config = Config::parse(R"({"train": {"dist": {"pipeline_parallel_size": 4,
          "pipeline_num_layers": 24)" + more +
                                        "}}}");
      const ParallelModel parallel = initialize(model, config, in(world));
      EXPECT_EQ(parallel.get_layer_stage_id(-1), parallel.get_layer_stage_id(23));
      expect_contains(error_of([&] { parallel.get_layer_stage_id(24); }), {"24", "24 layers"});
      error_of([&] { parallel.get_layer_stage_id(-2); });
      if (world.rank() != 1) return;
      for (int i = 0; i < 24; ++i) found.push_back(parallel.get_layer_stage_id(i));
    });
    return found;
  };
  const std::vector<int> rule = {0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1,
                                 1, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3};
  EXPECT_EQ(ids(""), rule);
  std::vector<int> own = rule;
  own[6] = 0;
  std::string text;
  for (const int id : own) text += (text.empty() ? "" : ", ") + std::to_string(id);
  EXPECT_EQ(ids(R"(, "custom_pipeline_stage_id": [)" + text + "]"), own);
}

}  // namespace
}  // namespace oslo::test
