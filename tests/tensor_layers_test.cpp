// The parallel layers against torch::nn on one device: numbers, shapes and collectives (acceptance
// cases T1 to T6, T11, T14, T16).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <mutex>
#include <sstream>

#include "mpu/error.h"
#include "mpu/mpu.h"
#include "parallelizers/placement/access.h"
#include "parallelizers/placement/mark.h"
#include "parallelizers/tensor/embedding.h"
#include "parallelizers/tensor/linear.h"

namespace oslo {
namespace {

using ::testing::HasSubstr;
using torch::Tensor;

void expect_close(const Tensor& actual, const Tensor& expected, const char* what) {
  ASSERT_TRUE(actual.defined()) << what;
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  EXPECT_TRUE(torch::allclose(actual, expected, 1e-5, 1e-6))
      << what << ": largest difference " << (actual - expected).abs().max().item<double>();
}

/// Ranks as threads share the default generator: each draws alone, from the same seed.
std::mutex generator_mutex;

template <typename Make>
auto seeded(const Make& make) {
  const std::lock_guard<std::mutex> lock(generator_mutex);
  torch::manual_seed(7);
  return make();
}

Tensor drawn(at::IntArrayRef sizes, bool requires_grad = true) {
  return seeded([&] { return torch::randn(sizes).set_requires_grad(requires_grad); });
}

/// `body` on each of `size` tensor-parallel ranks.
void on_tensor_ranks(int size, const std::function<void(const MPU&)>& body) {
  run_as_threads(size,
                 [&](World world) { body(MPU(world, MpuOptions().tensor_parallel_size(size))); });
}

/// What an action moved in the tensor group.
Traffic moved(const MPU& mpu, const std::string& operation, const std::function<void()>& action) {
  const Traffic before = mpu.tensor_group()->ledger().total(operation);
  action();
  return mpu.tensor_group()->ledger().total(operation) - before;
}

/// An all-reduce of `elements` floats, as the ledger counts it.
Traffic all_reduce_of(int ranks, int64_t elements) {
  const int64_t received = 2 * (ranks - 1) * elements / ranks;
  return {1, received, 4 * received};
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

template <typename Holder>
std::string printed(const Holder& module) {
  std::ostringstream text;
  text << module;
  return text.str();
}

/// Forward and backward of both layers on the same input and output gradient.
template <typename Layer, typename Native>
void expect_same(Layer& layer, Native& native, const Tensor& x) {
  const bool differentiable = x.is_floating_point();
  const Tensor own = x.detach().clone().set_requires_grad(differentiable);
  const Tensor reference = x.detach().clone().set_requires_grad(differentiable);
  const Tensor y = layer->forward(own), expected = native->forward(reference);
  expect_close(full_tensor(y).detach(), expected.detach(), "output");
  const Tensor gradient = torch::linspace(-1, 1, expected.numel()).view(expected.sizes());
  y.backward(gradient);
  expected.backward(gradient);
  if (differentiable) expect_close(own.grad(), reference.grad(), "input gradient");
  const auto parameters = layer->named_parameters();
  for (const auto& parameter : native->named_parameters()) {
    const Tensor& part = parameters[parameter.key()];
    EXPECT_EQ(part.grad().sizes(), part.sizes());
    expect_close(full_tensor(part.grad()), parameter.value().grad(), parameter.key().c_str());
  }
}

TEST(ColumnParallelLinear, IdentityTimesOnesOnEightRanks) {  // T1
  on_tensor_ranks(8, [](const MPU& mpu) {
    nn::ColumnParallelLinear layer(nn::LinearOptions(8, 8).bias(false).gather_output(true), mpu);
    {
      torch::NoGradGuard no_grad;
      layer->weight.fill_(1);
    }
    const Tensor x = torch::eye(8).set_requires_grad(true);
    const Tensor y = layer->forward(x);
    EXPECT_FALSE(is_placed(y));
    EXPECT_TRUE(torch::equal(y, torch::ones({8, 8})));
    y.sum().backward();
    EXPECT_TRUE(torch::equal(x.grad(), torch::full({8, 8}, 8.0)));
  });
}

TEST(ColumnParallelLinear, HoldsChunksAndReducesTheInputGradientOnce) {  // T2
  on_tensor_ranks(4, [](const MPU& mpu) {
    auto layer = seeded([&] { return nn::ColumnParallelLinear(8, 16, mpu); });
    auto native = seeded([] { return torch::nn::Linear(8, 16); });
    const Tensor x = drawn({8, 8, 8}), reference = x.detach().clone().set_requires_grad(true);
    Tensor y;
    EXPECT_EQ(moved(mpu, "", [&] { y = layer->forward(x); }), Traffic());
    const Tensor expected = native->forward(reference);
    EXPECT_EQ(y.sizes(), expected.sizes());
    expect_close(local_tensor(y).detach(),
                 expected.detach().chunk(4, -1)[mpu.get_tensor_parallel_rank()], "local output");
    EXPECT_EQ(moved(mpu, "", [&] { y.backward(torch::ones_like(expected)); }),
              all_reduce_of(4, 8 * 8 * 8));
    expected.backward(torch::ones_like(expected));
    expect_close(x.grad(), reference.grad(), "input gradient");
  });
}

TEST(RowParallelLinear, ReducesOnceForwardAndAddsTheBiasOnce) {  // T3
  on_tensor_ranks(4, [](const MPU& mpu) {
    auto layer = seeded([&] {
      return nn::RowParallelLinear(nn::LinearOptions(16, 8).input_is_parallel(true), mpu);
    });
    auto native = seeded([] { return torch::nn::Linear(16, 8); });
    EXPECT_FALSE(is_placed(layer->bias));
    const Tensor whole = drawn({8, 8, 16});
    const Tensor part =
        whole.detach().chunk(4, -1)[mpu.get_tensor_parallel_rank()].clone().set_requires_grad(true);
    Tensor y;
    EXPECT_EQ(moved(mpu, "", [&] { y = layer->forward(part); }), all_reduce_of(4, 8 * 8 * 8));
    EXPECT_FALSE(is_placed(y));
    const Tensor expected = native->forward(whole);
    expect_close(y.detach(), expected.detach(), "output");
    EXPECT_EQ(moved(mpu, "", [&] { y.backward(torch::ones_like(y)); }), Traffic());
    expected.backward(torch::ones_like(expected));
    expect_close(part.grad(), whole.grad().chunk(4, -1)[mpu.get_tensor_parallel_rank()],
                 "input gradient");
    expect_close(layer->bias.grad(), native->bias.grad(), "bias gradient");
  });
}

TEST(RowParallelLinear, TakesAWholeInputToo) {
  on_tensor_ranks(2, [](const MPU& mpu) {
    auto layer = seeded([&] { return nn::RowParallelLinear(6, 5, mpu); });
    auto native = seeded([] { return torch::nn::Linear(6, 5); });
    expect_same(layer, native, drawn({4, 3, 6}));
    expect_same(layer, native, drawn({4, 6}));
  });
}

TEST(ParallelLayers, KeepTheirShareOfTheShape) {  // T4
  on_tensor_ranks(2, [](const MPU& mpu) {
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

TEST(ParallelLayers, AnMlpReducesOnceEachWay) {  // T5
  on_tensor_ranks(2, [](const MPU& mpu) {
    const int64_t batch = 3, time = 5, hidden = 32;
    auto up = seeded([&] { return nn::ColumnParallelLinear(hidden, 128, mpu); });
    auto down = seeded([&] { return nn::RowParallelLinear(128, hidden, mpu); });
    auto native_up = seeded([&] { return torch::nn::Linear(hidden, 128); });
    auto native_down = seeded([&] { return torch::nn::Linear(128, hidden); });
    const Tensor x = drawn({batch, time, hidden});
    const Tensor reference = x.detach().clone().set_requires_grad(true);
    Tensor y;
    EXPECT_EQ(moved(mpu, "", [&] { y = down->forward(torch::gelu(up->forward(x))); }),
              all_reduce_of(2, batch * time * hidden));
    const Tensor expected = native_down->forward(torch::gelu(native_up->forward(reference)));
    expect_close(y.detach(), expected.detach(), "output");
    EXPECT_EQ(moved(mpu, "", [&] { y.pow(2).sum().backward(); }),
              all_reduce_of(2, batch * time * hidden));
    expected.pow(2).sum().backward();
    expect_close(x.grad(), reference.grad(), "input gradient");
    expect_close(full_tensor(up->weight.grad()), native_up->weight.grad(), "up");
    expect_close(full_tensor(up->bias.grad()), native_up->bias.grad(), "up bias");
    expect_close(full_tensor(down->weight.grad()), native_down->weight.grad(), "down");
    expect_close(down->bias.grad(), native_down->bias.grad(), "down bias");
  });
}

TEST(VocabParallelEmbedding, LooksUpAndTrainsAsOneTable) {  // T6
  on_tensor_ranks(4, [](const MPU& mpu) {
    auto table = seeded([&] { return nn::VocabParallelEmbedding(16, 8, mpu); });
    auto native = seeded([] { return torch::nn::Embedding(16, 8); });
    const Tensor ids = torch::tensor({{0, 3, 4, 15}, {7, 7, 8, 12}});
    expect_same(table, native, ids);
    Tensor y;
    EXPECT_EQ(moved(mpu, "", [&] { y = table->forward(ids); }), all_reduce_of(4, 2 * 4 * 8));
    EXPECT_EQ(moved(mpu, "", [&] { y.sum().backward(); }), Traffic());
  });
}

TEST(VocabParallelEmbedding, PaddingInAnotherShardThanTheFirst) {  // T6
  on_tensor_ranks(4, [](const MPU& mpu) {
    const auto options = torch::nn::EmbeddingOptions(16, 8).padding_idx(9);
    auto table = seeded([&] { return nn::VocabParallelEmbedding(options, mpu); });
    auto native = seeded([&] { return torch::nn::Embedding(options); });
    EXPECT_TRUE(torch::equal(full_tensor(table->weight)[9], torch::zeros(8)));
    expect_same(table, native, torch::tensor({9, 1, 9, 14, 8}));
    EXPECT_TRUE(torch::equal(full_tensor(table->weight.grad())[9], torch::zeros(8)));
  });
}

TEST(VocabParallelEmbedding, CopiesAGivenTable) {
  on_tensor_ranks(2, [](const MPU& mpu) {
    const Tensor given = torch::arange(12.0).view({6, 2});
    nn::VocabParallelEmbedding table(torch::nn::EmbeddingOptions(6, 2)._weight(given), mpu);
    EXPECT_EQ(given.sizes(), at::IntArrayRef({6, 2}));
    EXPECT_TRUE(torch::equal(full_tensor(table->weight), given));
    EXPECT_TRUE(table->weight.requires_grad());
  });
}

TEST(ParallelLayers, UnevenParts) {  // T11
  on_tensor_ranks(6, [](const MPU& mpu) {
    const int rank = mpu.get_tensor_parallel_rank();
    auto column = seeded([&] { return nn::ColumnParallelLinear(9, 16, mpu); });
    auto row = seeded([&] { return nn::RowParallelLinear(9, 16, mpu); });
    auto native = seeded([] { return torch::nn::Linear(9, 16); });
    auto other = seeded([] { return torch::nn::Linear(9, 16); });
    EXPECT_EQ(column->weight.size(0), (std::vector<int>{3, 3, 3, 3, 2, 2}[rank]));
    EXPECT_EQ(row->weight.size(1), (std::vector<int>{2, 2, 2, 1, 1, 1}[rank]));
    expect_same(column, native, drawn({4, 9}));
    expect_same(row, other, drawn({2, 3, 9}));
  });
  on_tensor_ranks(2, [](const MPU& mpu) {
    auto column = seeded([&] { return nn::ColumnParallelLinear(4, 5, mpu); });
    auto native = seeded([] { return torch::nn::Linear(4, 5); });
    auto table = seeded([&] { return nn::VocabParallelEmbedding(5, 3, mpu); });
    auto native_table = seeded([] { return torch::nn::Embedding(5, 3); });
    EXPECT_EQ(column->weight.size(0), mpu.get_tensor_parallel_rank() == 0 ? 3 : 2);
    expect_same(column, native, drawn({2, 3, 4}));
    expect_same(table, native_table, torch::tensor({4, 0, 2, 3, 3}));
  });
}

TEST(ParallelLayers, MoreRanksThanRows) {  // T11
  on_tensor_ranks(3, [](const MPU& mpu) {
    auto column = seeded([&] { return nn::ColumnParallelLinear(4, 2, mpu); });
    auto native = seeded([] { return torch::nn::Linear(4, 2); });
    auto row = seeded([&] { return nn::RowParallelLinear(2, 4, mpu); });
    auto native_row = seeded([] { return torch::nn::Linear(2, 4); });
    auto table = seeded([&] { return nn::VocabParallelEmbedding(2, 4, mpu); });
    auto native_table = seeded([] { return torch::nn::Embedding(2, 4); });
    const int64_t held = mpu.get_tensor_parallel_rank() == 2 ? 0 : 1;
    EXPECT_EQ(column->weight.size(0), held);
    EXPECT_EQ(row->weight.size(1), held);
    EXPECT_EQ(table->weight.size(0), held);
    expect_same(column, native, drawn({3, 4}));
    expect_same(row, native_row, drawn({3, 2}));
    expect_same(table, native_table, torch::tensor({1, 0, 1}));
  });
}

TEST(ParallelLayers, AdoptKeepsTensorsNamesTypesAndFrozenWeights) {  // T14
  on_tensor_ranks(2, [](const MPU& mpu) {
    auto original = seeded([] { return torch::nn::Linear(4, 6); });
    original->to(torch::kDouble);
    original->weight.set_requires_grad(false);
    original->eval();
    const Tensor whole = original->weight.detach().clone();
    nn::ColumnParallelLinear adopted(std::make_shared<nn::ColumnParallelLinearImpl>(*original));
    auto layout = make_layout(mpu.tensor_mesh(), {Placement::shard(0)}, original->weight.sizes());
    mark_parameter(original->weight, std::make_shared<Layout>(layout), "fc.weight");
    EXPECT_TRUE(adopted->weight.is_same(original->weight));
    EXPECT_TRUE(adopted->named_parameters()["weight"].is_same(original->weight));
    EXPECT_TRUE(adopted->named_parameters()["bias"].is_same(original->bias));
    EXPECT_EQ(adopted->named_parameters().keys(), original->named_parameters().keys());
    EXPECT_FALSE(adopted->weight.requires_grad());
    EXPECT_TRUE(adopted->bias.requires_grad());
    EXPECT_EQ(adopted->weight.dtype(), torch::kDouble);
    EXPECT_FALSE(adopted->is_training());
    EXPECT_TRUE(torch::equal(full_tensor(adopted->weight), whole));
    EXPECT_NE(adopted->as<torch::nn::Linear>(), nullptr);
    EXPECT_THAT(printed(adopted), HasSubstr("ranks=2, local_out_features=3"));
  });
}

TEST(ParallelLayers, FrozenWeightsGetNoGradient) {
  on_tensor_ranks(2, [](const MPU& mpu) {
    nn::ColumnParallelLinear layer(4, 6, mpu);
    layer->weight.set_requires_grad(false);
    const Tensor x = torch::ones({2, 4});
    const Traffic traffic = moved(mpu, "", [&] {
      const Tensor y = layer->forward(x);
      y.backward(torch::ones({2, 6}));
    });
    EXPECT_EQ(traffic, Traffic());  // nobody asks for the gradient of x either
    EXPECT_FALSE(layer->weight.grad().defined());
    EXPECT_TRUE(torch::equal(full_tensor(layer->bias.grad()), torch::full({6}, 2.0)));
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
  on_tensor_ranks(2, [](const MPU& mpu) {
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
  on_tensor_ranks(2, [](const MPU& mpu) {
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
  on_tensor_ranks(2, [](const MPU& mpu) {
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
  on_tensor_ranks(2, [](const MPU& mpu) {
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
  on_tensor_ranks(2, [](const MPU& mpu) {
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
  on_tensor_ranks(2, [](const MPU& mpu) {
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
  on_tensor_ranks(2, [](const MPU& mpu) {
    auto layer = seeded([&] { return nn::ColumnParallelLinear(5, 7, mpu); });
    auto native = seeded([] { return torch::nn::Linear(5, 7); });
    layer->to(torch::kDouble);
    EXPECT_TRUE(is_placed(layer->weight));
    EXPECT_TRUE(torch::equal(full_tensor(layer->weight), native->weight.to(torch::kDouble)));
  });
}

}  // namespace
}  // namespace oslo
