// Walking module trees, and parameters under several names (acceptance case T8).
#include "parallelizers/modules/module_tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "mpu/base/error.h"
#include "mpu/grid/mpu.h"
#include "parallelizers/layers/embedding.h"
#include "parallelizers/layers/linear.h"
#include "parallelizers/modules/parameters_in_use.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using torch::Tensor;

struct BlockImpl : torch::nn::Cloneable<BlockImpl> {
  BlockImpl() { BlockImpl::reset(); }
  void reset() override {
    fc = register_module("fc", torch::nn::Linear(4, 6));
    list = register_module("list", torch::nn::Sequential(torch::nn::Linear(6, 4)));
  }
  Tensor forward(const Tensor& x) { return list->forward(fc->forward(x)); }
  torch::nn::Linear fc = nullptr;
  torch::nn::Sequential list = nullptr;
};
TORCH_MODULE(Block);

struct LanguageModelImpl : torch::nn::Module {
  LanguageModelImpl()
      : wte(register_module("wte", torch::nn::Embedding(10, 4))),
        block(register_module("block", Block())),
        again(register_module("again", block)),
        lm_head(register_module("lm_head",
                                torch::nn::Linear(torch::nn::LinearOptions(4, 10).bias(false)))) {}
  torch::nn::Embedding wte;
  Block block, again;
  torch::nn::Linear lm_head;
};
TORCH_MODULE(LanguageModel);

void cut(const Tensor& parameter, const MPU& mpu, int64_t dim) {
  mark_parameter(parameter,
                 std::make_shared<Layout>(
                     make_layout(mpu.tensor_mesh(), {Placement::shard(dim)}, parameter.sizes())),
                 "a parameter");
}

TEST(ModuleTree, ListsEveryRegistrationParentsFirst) {
  LanguageModel model;
  std::vector<std::string> paths;
  const ModelView view(model.ptr());
  for (const ModuleView& entry : view.modules()) {
    paths.push_back(entry.path);
    if (entry.path.empty()) {
      EXPECT_EQ(entry.parent, nullptr);
      EXPECT_EQ(entry.module, model.ptr());
    } else {
      EXPECT_EQ(entry.parent->named_children()[entry.name], entry.module);
    }
  }
  EXPECT_THAT(paths, ElementsAre("", "wte", "block", "block.fc", "block.list", "block.list.0",
                                 "again", "again.fc", "again.list", "again.list.0", "lm_head"));
  EXPECT_THROW(ModelView(std::shared_ptr<torch::nn::Module>()), Error);
}

TEST(ModuleTree, NamesClassesAsUsersWriteThem) {
  EXPECT_EQ(class_name(*torch::nn::Linear(1, 1)), "torch::nn::Linear");
  EXPECT_THAT(class_name(*Block()), HasSubstr("Block"));
  EXPECT_EQ(class_name(*nn::RowParallelLinear(2, 2, MPU(World::alone()))),
            "oslo::nn::RowParallelLinear");
}

TEST(ModuleTree, AClonedModelKeepsItsCutParameters) {
  run_as_threads(2, [](World world) {
    const MPU mpu(world, MpuOptions().tensor_parallel_size(2));
    Block block;
    const auto first = std::dynamic_pointer_cast<torch::nn::LinearImpl>(block->list->ptr(0));
    cut(block->fc->weight, mpu, 0);
    cut(first->weight, mpu, 1);
    const auto copy = std::dynamic_pointer_cast<BlockImpl>(block->clone());
    ASSERT_NE(copy, nullptr);
    for (const char* name : {"fc.weight", "list.0.weight"}) {
      const Tensor own = block->named_parameters()[name], copied = copy->named_parameters()[name];
      EXPECT_TRUE(is_placed(copied)) << name;
      EXPECT_FALSE(copied.is_same(own)) << name;
      EXPECT_TRUE(torch::equal(local_tensor(copied), local_tensor(own))) << name;
    }
    EXPECT_TRUE(copy->fc->weight.is_same(copy->named_parameters()["fc.weight"]));
    const Tensor x = torch::ones({2, 4});
    EXPECT_TRUE(torch::equal(full_tensor(copy->forward(x)), full_tensor(block->forward(x))));
  });
}

std::vector<std::string> names_in_use(const torch::nn::Module& module) {
  std::vector<std::string> names;
  for (const NamedTensor& parameter : parameters_in_use(module)) names.push_back(parameter.name);
  return names;
}

Tensor in_use(torch::nn::Module& module, const std::string& name, const Tensor& registered) {
  return ParameterSlot{registered, parameter_member(module, name)}.in_use();
}

TEST(ParametersInUse, AMemberCountsAndRegistrationsStay) {
  LanguageModel model;
  model->lm_head->weight = model->wte->weight;
  const Tensor registered = model->named_parameters()["lm_head.weight"];
  EXPECT_FALSE(registered.is_same(model->wte->weight));
  EXPECT_TRUE(in_use(*model->lm_head, "weight", registered).is_same(model->wte->weight));
  EXPECT_THAT(names_in_use(*model), ElementsAre("wte.weight", "block.fc.weight", "block.fc.bias",
                                                "block.list.0.weight", "block.list.0.bias"));
  EXPECT_TRUE(model->named_parameters()["lm_head.weight"].is_same(registered));
}

TEST(ParametersInUse, MembersThatAreNoParametersDoNotCount) {
  LanguageModel model;
  const Tensor registered = model->lm_head->weight;
  model->lm_head->weight = model->wte->weight * 2;
  EXPECT_TRUE(in_use(*model->lm_head, "weight", registered).is_same(registered));
  model->block->fc->bias = Tensor();
  EXPECT_THAT(names_in_use(*model->block->fc), ElementsAre("weight", "bias"));
}

TEST(ParametersInUse, OfEveryLayerThatKeepsThem) {
  const auto expect_found = [](torch::nn::Module& module) {
    for (const auto& item : module.named_parameters(/*recurse=*/false)) {
      const Tensor* member = parameter_member(module, item.key());
      ASSERT_NE(member, nullptr) << module.name() << " " << item.key();
      EXPECT_TRUE(member->is_same(item.value())) << module.name() << " " << item.key();
    }
    EXPECT_EQ(parameter_member(module, "weight_v"), nullptr);
  };
  expect_found(*torch::nn::Linear(2, 3));
  expect_found(*torch::nn::Bilinear(2, 3, 4));
  expect_found(*torch::nn::Embedding(2, 3));
  expect_found(*torch::nn::EmbeddingBag(2, 3));
  expect_found(*torch::nn::Conv1d(2, 3, 1));
  expect_found(*torch::nn::Conv3d(2, 3, 1));
  expect_found(*torch::nn::ConvTranspose2d(2, 3, 1));
  expect_found(*torch::nn::BatchNorm1d(2));
  expect_found(*torch::nn::LayerNorm(torch::nn::LayerNormOptions({2})));
  expect_found(*torch::nn::GroupNorm(1, 2));
  expect_found(*torch::nn::PReLU());
  expect_found(*torch::nn::GRUCell(2, 3));
  expect_found(*torch::nn::MultiheadAttention(
      torch::nn::MultiheadAttentionOptions(4, 2).add_bias_kv(true).kdim(3).vdim(5)));
  expect_found(*torch::nn::MultiheadAttention(4, 2));
}

TEST(Padding, StaysInTheOptionsWhereItIsARowOfEveryRank) {
  run_as_threads(3, [](World world) {
    const MPU mpu(world, MpuOptions().tensor_parallel_size(3));
    for (const int64_t row : {0, 2, 3, 9}) {  // of 4 + 3 + 3 rows
      const auto options = torch::nn::EmbeddingOptions(10, 4).padding_idx(row)._weight(
          torch::arange(40.0).view({10, 4}));
      torch::nn::Embedding layer(options);
      layer->weight.set_requires_grad(true);
      cut(layer->weight, mpu, 0);
      nn::move_padding_to_mark(*layer);
      EXPECT_EQ(layer->options.padding_idx(), row < 3 ? std::optional(row) : std::nullopt);
      layer->forward(torch::tensor({row, int64_t{1}})).sum().backward();
      Tensor expected = torch::zeros({10, 4});
      expected[1] = 1;
      EXPECT_TRUE(torch::equal(full_tensor(layer->weight.grad()), expected)) << row;
    }
  });
}

TEST(Padding, AnUntouchedEmbeddingWithPaddingBeyondThisRanksRows) {  // T6
  run_as_threads(3, [](World world) {
    const MPU mpu(world, MpuOptions().tensor_parallel_size(3));
    const auto options = torch::nn::EmbeddingOptions(10, 4).padding_idx(8)._weight(
        torch::arange(40.0).view({10, 4}));
    torch::nn::Embedding layer(options);
    layer->weight.set_requires_grad(true);
    cut(layer->weight, mpu, 0);
    nn::move_padding_to_mark(*layer);
    const Tensor ids = torch::tensor({8, 1, 9, 8});
    const Tensor y = layer->forward(ids);
    EXPECT_TRUE(torch::equal(y[0], torch::arange(32.0, 36.0)));
    y.sum().backward();
    Tensor expected = torch::zeros({10, 4});
    expected[1] = 1;
    expected[9] = 1;
    EXPECT_TRUE(torch::equal(full_tensor(layer->weight.grad()), expected));
    EXPECT_EQ(layer->options.padding_idx(), std::nullopt);
  });
}

}  // namespace
}  // namespace oslo
