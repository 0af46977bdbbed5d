// The parallel layers as modules: shapes, copies, files, words (acceptance cases T4, T14, T16).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>
#include <sstream>

#include "parallelizers/placement/carrier/mark.h"
#include "tests/support/error_of.h"
#include "tests/support/printed.h"
#include "tests/tensor_layers_test/layers.h"

namespace oslo::layers_test {
namespace {

using test::error_of;
using test::printed;
using ::testing::HasSubstr;

TEST(ParallelLayers, KeepTheirShareOfTheShape) {  // T4
  on_ranks(2, [](const MPU& mpu) {
    nn::ColumnParallelLinear column(32, 128, mpu);
    nn::RowParallelLinear row(32, 128, mpu);
    nn::VocabParallelEmbedding table(128, 32, mpu);
    EXPECT_EQ(column->weight.sizes(), at::IntArrayRef({64, 32}));
    EXPECT_EQ(column->bias.sizes(), at::IntArrayRef({64}));
    EXPECT_EQ(row->weight.sizes(), at::IntArrayRef({128, 16}));
    EXPECT_EQ(row->bias.sizes(), at::IntArrayRef({128}));
    EXPECT_EQ(table->weight.sizes(), at::IntArrayRef({64, 32}));
    EXPECT_EQ(column->options.out_features(), 128);
    EXPECT_EQ(row->options.in_features(), 32);
    EXPECT_EQ(table->options.num_embeddings(), 128);
  });
}

TEST(VocabParallelEmbedding, CopiesAGivenTable) {
  on_ranks(2, [](const MPU& mpu) {
    const Tensor given = torch::arange(12.0).view({6, 2});
    nn::VocabParallelEmbedding table(torch::nn::EmbeddingOptions(6, 2)._weight(given), mpu);
    EXPECT_EQ(given.sizes(), at::IntArrayRef({6, 2}));
    EXPECT_TRUE(torch::equal(full_tensor(table->weight), given));
    EXPECT_TRUE(table->weight.requires_grad());
  });
}

TEST(ParallelLayers, ACutKeepsTensorsNamesTypesAndFrozenWeights) {  // T14
  on_ranks(2, [](const MPU& mpu) {
    auto original = seeded([] { return torch::nn::Linear(4, 6); });
    original->to(torch::kDouble);
    original->weight.set_requires_grad(false);
    original->eval();
    const Tensor whole = original->weight.detach().clone();
    auto layout = make_layout(mpu.tensor_mesh(), {Placement::shard(0)}, original->weight.sizes());
    mark_parameter(original->weight, std::make_shared<Layout>(layout), "fc.weight");
    EXPECT_TRUE(original->named_parameters()["weight"].is_same(original->weight));
    EXPECT_EQ(original->weight.sizes(), at::IntArrayRef({3, 4}));
    EXPECT_FALSE(original->weight.requires_grad());
    EXPECT_TRUE(original->bias.requires_grad());
    EXPECT_EQ(original->weight.dtype(), torch::kDouble);
    EXPECT_FALSE(original->is_training());
    EXPECT_TRUE(torch::equal(full_tensor(original->weight), whole));
    EXPECT_EQ(printed(original), "torch::nn::Linear(in_features=4, out_features=6, bias=true)");
  });
}

TEST(ParallelLayers, LibaiExamplesHoldByLocalShape) {  // T16
  const MPU two(World::fake(0, 2), MpuOptions().tensor_parallel_size(2));
  torch::NoGradGuard no_grad;
  nn::Linear wide(nn::LinearOptions(2048, 32768).parallel("col"), two);
  const Tensor y = wide->forward(torch::zeros({32, 2048}));
  EXPECT_EQ(local_tensor(y).sizes(), at::IntArrayRef({32, 16384}));
  EXPECT_EQ(y.sizes(), at::IntArrayRef({32, 32768}));

  const MPU four(World::fake(3, 4), MpuOptions().tensor_parallel_size(2));
  nn::Linear up(nn::LinearOptions(1024, 16384).bias(false).parallel("col"), four);
  nn::Linear down(nn::LinearOptions(16384, 1024).parallel("row"), four);
  const Tensor batch = torch::zeros({32, 1024});
  const Tensor mine =
      batch.chunk(four.get_data_parallel_world_size())[four.get_data_parallel_rank()];
  const Tensor out = down->forward(torch::gelu(up->forward(mine)));
  EXPECT_EQ(local_tensor(out).sizes(), at::IntArrayRef({16, 1024}));
}

TEST(ParallelLayers, LinearCutsAsToldAndRefusesOtherWords) {
  on_ranks(2, [](const MPU& mpu) {
    nn::Linear column(nn::LinearOptions(4, 6).parallel("col"), mpu);
    nn::Linear row(nn::LinearOptions(4, 6).bias(false).parallel("row"), mpu);
    nn::Linear data(nn::LinearOptions(4, 6).parallel("data"), mpu);
    EXPECT_EQ(column->weight.sizes(), at::IntArrayRef({3, 4}));
    EXPECT_EQ(row->weight.sizes(), at::IntArrayRef({6, 2}));
    EXPECT_FALSE(row->bias.defined());
    EXPECT_FALSE(is_placed(data->weight));
    EXPECT_THAT(error_of([&] { nn::Linear(nn::LinearOptions(4, 6).parallel("column"), mpu); }),
                HasSubstr("\"column\""));
    EXPECT_THAT(error_of([&] {
                  nn::Linear(nn::LinearOptions(4, 6).parallel("row").gather_output(true), mpu);
                }),
                HasSubstr("gather_output"));
  });
}

TEST(ParallelLayers, PrintWhatTheyHold) {
  on_ranks(2, [](const MPU& mpu) {
    EXPECT_EQ(
        printed(nn::ColumnParallelLinear(32, 128, mpu)),
        "oslo::nn::ColumnParallelLinear(in_features=32, out_features=128, bias=true, ranks=2, "
        "local_out_features=64)");
    EXPECT_EQ(printed(nn::RowParallelLinear(nn::LinearOptions(32, 128).bias(false), mpu)),
              "oslo::nn::RowParallelLinear(in_features=32, out_features=128, bias=false, ranks=2, "
              "local_in_features=16)");
    EXPECT_EQ(
        printed(nn::Linear(nn::LinearOptions(32, 128).parallel("col"), mpu)),
        "oslo::nn::Linear(in_features=32, out_features=128, bias=true, parallel=col, ranks=2, "
        "local_out_features=64)");
    EXPECT_EQ(printed(nn::VocabParallelEmbedding(
                  torch::nn::EmbeddingOptions(128, 32).padding_idx(-1), mpu)),
              "oslo::nn::VocabParallelEmbedding(num_embeddings=128, embedding_dim=32, "
              "padding_idx=127, ranks=2, local_num_embeddings=64)");
  });
}

TEST(ParallelLayers, CloneIsDeepAndCutAlike) {
  on_ranks(2, [](const MPU& mpu) {
    const auto check = [](auto layer) {
      using Impl = typename decltype(layer)::ContainedType;
      const auto copy = std::dynamic_pointer_cast<Impl>(layer->clone());
      ASSERT_NE(copy, nullptr);
      EXPECT_TRUE(is_placed(copy->weight));
      EXPECT_TRUE(copy->weight.requires_grad());
      EXPECT_TRUE(copy->weight.is_leaf());
      EXPECT_TRUE(copy->weight.is_same(copy->named_parameters()["weight"]));
      const Tensor before = full_tensor(layer->weight).detach().clone();
      EXPECT_TRUE(torch::equal(full_tensor(copy->weight), before));
      torch::NoGradGuard no_grad;
      copy->weight.zero_();
      EXPECT_TRUE(torch::equal(full_tensor(layer->weight), before));
    };
    check(nn::ColumnParallelLinear(4, 6, mpu));
    check(nn::RowParallelLinear(4, 6, mpu));
    check(nn::Linear(nn::LinearOptions(4, 6).parallel("col"), mpu));
    check(nn::VocabParallelEmbedding(6, 4, mpu));
  });
}

TEST(ParallelLayers, ResetDrawsWhatOneDeviceWould) {
  on_ranks(2, [](const MPU& mpu) {
    nn::ColumnParallelLinear column(5, 7, mpu);
    nn::RowParallelLinear row(5, 7, mpu);
    nn::VocabParallelEmbedding table(7, 4, mpu);
    mpu.world().barrier();  // the layers above drew without the lock
    auto native = seeded([] { return torch::nn::Linear(5, 7); });
    auto native_table = seeded([] { return torch::nn::Embedding(7, 4); });
    const Tensor handle = column->weight;
    seeded([&] { column->reset_parameters(); });
    seeded([&] { row->reset_parameters(); });
    seeded([&] { table->reset_parameters(); });
    EXPECT_TRUE(column->weight.is_same(handle));
    EXPECT_TRUE(torch::equal(full_tensor(column->weight), native->weight));
    EXPECT_TRUE(torch::equal(full_tensor(column->bias), native->bias));
    EXPECT_TRUE(torch::equal(full_tensor(row->weight), native->weight));
    EXPECT_TRUE(torch::equal(row->bias, native->bias));
    EXPECT_TRUE(torch::equal(full_tensor(table->weight), native_table->weight));
  });
}

TEST(ParallelLayers, LoadTakesThisRanksPartAndSaveIsRefused) {
  on_ranks(2, [](const MPU& mpu) {
    auto native = seeded([] { return torch::nn::Linear(5, 7); });
    auto native_table = seeded([] { return torch::nn::Embedding(7, 4); });
    mpu.world().barrier();  // the layers below draw without the lock
    std::stringstream linear_file, table_file, again;
    torch::save(native, linear_file);
    torch::save(native_table, table_file);
    const auto reload = [&](auto layer, std::stringstream& file) {
      const Tensor handle = layer->weight;
      file.seekg(0);
      EXPECT_EQ(moved(mpu, "", [&] { torch::load(layer, file); }), Traffic());
      EXPECT_TRUE(layer->weight.is_same(handle));
      return full_tensor(layer->weight);
    };
    EXPECT_TRUE(
        torch::equal(reload(nn::ColumnParallelLinear(5, 7, mpu), linear_file), native->weight));
    EXPECT_TRUE(
        torch::equal(reload(nn::RowParallelLinear(5, 7, mpu), linear_file), native->weight));
    EXPECT_TRUE(torch::equal(reload(nn::VocabParallelEmbedding(7, 4, mpu), table_file),
                             native_table->weight));
    EXPECT_THAT(error_of([&] { reload(nn::ColumnParallelLinear(5, 8, mpu), linear_file); }),
                HasSubstr("[8, 5]"));
    EXPECT_THAT(error_of([&] { torch::save(nn::ColumnParallelLinear(5, 7, mpu), again); }),
                HasSubstr("save_parallelized"));
  });
}

TEST(ParallelLayers, OnOneRankTheyAreOrdinary) {
  const MPU mpu(World::alone());
  auto layer = seeded([&] { return nn::ColumnParallelLinear(5, 7, mpu); });
  auto native = seeded([] { return torch::nn::Linear(5, 7); });
  EXPECT_FALSE(is_placed(layer->weight));
  EXPECT_EQ(layer->weight.key_set(), native->weight.key_set());
  expect_same(layer, native, drawn({3, 5}));
  std::stringstream file;
  torch::save(layer, file);
  torch::load(native, file);
  EXPECT_EQ(printed(nn::RowParallelLinear(5, 7, mpu)),
            "oslo::nn::RowParallelLinear(in_features=5, out_features=7, bias=true, ranks=1)");
}

TEST(ParallelLayers, CopiesOfTheLocalShapeStayLocal) {
  on_ranks(2, [](const MPU& mpu) {
    torch::NoGradGuard no_grad;
    nn::ColumnParallelLinear layer(5, 7, mpu);
    const int64_t rows = layer->weight.size(0);
    const Tensor part = torch::arange(double(5 * rows)).view({rows, 5});
    const Tensor whole = torch::arange(35.0).view({7, 5});
    Tensor back = torch::empty_like(part);
    EXPECT_EQ(moved(mpu, "",
                    [&] {
                      layer->weight.copy_(part);
                      back.copy_(layer->weight);
                    }),
              Traffic());
    EXPECT_TRUE(torch::equal(back, part));
    layer->weight.copy_(whole);  // takes this rank's part
    EXPECT_TRUE(torch::equal(full_tensor(layer->weight), whole));
  });
}

TEST(ParallelLayers, SurviveACastOfTheModule) {
  on_ranks(2, [](const MPU& mpu) {
    auto layer = seeded([&] { return nn::ColumnParallelLinear(5, 7, mpu); });
    auto native = seeded([] { return torch::nn::Linear(5, 7); });
    layer->to(torch::kDouble);
    EXPECT_TRUE(is_placed(layer->weight));
    EXPECT_TRUE(torch::equal(full_tensor(layer->weight), native->weight.to(torch::kDouble)));
  });
}

}  // namespace
}  // namespace oslo::layers_test
