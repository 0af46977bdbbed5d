// The parallel layers against torch::nn on one device: numbers and collectives (acceptance cases T1
// to T3, T5, T6, T11).
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <vector>

#include "tests/tensor_layers_test/layers.h"

namespace oslo::layers_test {
namespace {

TEST(ColumnParallelLinear, IdentityTimesOnesOnEightRanks) {  // T1
  on_ranks(8, [](const MPU& mpu) {
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
  on_ranks(4, [](const MPU& mpu) {
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
  on_ranks(4, [](const MPU& mpu) {
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
  on_ranks(2, [](const MPU& mpu) {
    auto layer = seeded([&] { return nn::RowParallelLinear(6, 5, mpu); });
    auto native = seeded([] { return torch::nn::Linear(6, 5); });
    expect_same(layer, native, drawn({4, 3, 6}));
    expect_same(layer, native, drawn({4, 6}));
  });
}

TEST(ParallelLayers, AnMlpReducesOnceEachWay) {  // T5
  on_ranks(2, [](const MPU& mpu) {
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
  on_ranks(4, [](const MPU& mpu) {
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
  on_ranks(4, [](const MPU& mpu) {
    const auto options = torch::nn::EmbeddingOptions(16, 8).padding_idx(9);
    auto table = seeded([&] { return nn::VocabParallelEmbedding(options, mpu); });
    auto native = seeded([&] { return torch::nn::Embedding(options); });
    EXPECT_TRUE(torch::equal(full_tensor(table->weight)[9], torch::zeros(8)));
    expect_same(table, native, torch::tensor({9, 1, 9, 14, 8}));
    EXPECT_TRUE(torch::equal(full_tensor(table->weight.grad())[9], torch::zeros(8)));
  });
}

TEST(ParallelLayers, UnevenParts) {  // T11
  on_ranks(6, [](const MPU& mpu) {
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
  on_ranks(2, [](const MPU& mpu) {
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
  on_ranks(3, [](const MPU& mpu) {
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

TEST(ParallelLayers, FrozenWeightsGetNoGradient) {
  on_ranks(2, [](const MPU& mpu) {
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

}  // namespace
}  // namespace oslo::layers_test
