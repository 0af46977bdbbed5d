// Global tensors, as LiBai's examples hand them to parallel layers: over data and tensor ranks at
// once, one sbp an axis. Reference: torch::nn on one device, on the whole batch.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <string>
#include <vector>

#include "parallelizers/layers/global_tensor.h"
#include "tests/support/error_of.h"
#include "tests/support/errors_of.h"
#include "tests/tensor_layers_test/layers.h"

namespace oslo::layers_test {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

struct Grid {
  int data = 1, tensor = 1;
};

const std::vector<Grid> kGrids = {{1, 1}, {1, 2}, {2, 1}, {2, 2}, {3, 2}, {2, 3}};

void on_grid(const Grid& grid, const std::function<void(const MPU&)>& body) {
  run_as_threads(grid.data * grid.tensor, [&](World world) {
    body(MPU(world, MpuOptions().tensor_parallel_size(grid.tensor)));
  });
}

MeshPtr both(const MPU& mpu) {
  return mpu.mesh({"data", "tensor"});
}

/// Rows over data ranks, the same on tensor ranks.
Tensor by_rows(const Tensor& x, const MPU& mpu) {
  return distribute(x, both(mpu), {sbp::split(0), sbp::broadcast});
}

/// Each rank has its own leaf: gradients of threads that share one would be added up.
Tensor own_leaf(const Tensor& x) {
  return x.detach().clone().set_requires_grad(x.requires_grad());
}

/// The gradients of `layer` and `native`, which had the same whole batch.
template <typename Layer, typename Native>
void expect_gradients(Layer& layer, Native& native) {
  const auto own = layer->named_parameters();
  for (const auto& item : native->named_parameters()) {
    ASSERT_TRUE(own[item.key()].grad().defined()) << item.key();
    expect_close(full_tensor(own[item.key()].grad()), item.value().grad(), item.key().c_str());
  }
}

/// LiBai's Huge_FC, at other sizes.
TEST(GlobalInputs, ABroadcastBatchGivesColumnsOfTheClasses) {
  on_ranks(2, [](const MPU& mpu) {
    auto fc = seeded([&] { return nn::Linear(nn::LinearOptions(9, 13).parallel("col"), mpu); });
    auto native = seeded([] { return torch::nn::Linear(9, 13); });
    const Tensor whole = drawn({7, 9}), x = own_leaf(whole), reference = own_leaf(whole);
    const Tensor y = fc(distribute(x, mpu.mesh({"tensor"}), {sbp::broadcast()}));
    EXPECT_EQ(y.sizes(), (std::vector<int64_t>{7, 13}));
    EXPECT_EQ(local_tensor(y).sizes(),
              (std::vector<int64_t>{7, mpu.get_tensor_parallel_rank() == 0 ? 7 : 6}));
    const Tensor labels = torch::arange(7);
    torch::nn::functional::cross_entropy(y, labels).backward();
    torch::nn::functional::cross_entropy(native(reference), labels).backward();
    expect_close(x.grad(), reference.grad(), "input gradient");
    expect_gradients(fc, native);
  });
}

/// LiBai's MLP_2D, at sizes that divide by nothing, trained.
TEST(GlobalInputs, AnMlpOverDataAndTensorRanksTrainsAsOneDevice) {
  for (const Grid& grid : kGrids) {
    SCOPED_TRACE(std::to_string(grid.data) + " x " + std::to_string(grid.tensor));
    on_grid(grid, [&](const MPU& mpu) {
      using O = nn::LinearOptions;
      auto up = seeded([&] { return nn::Linear(O(9, 11).parallel("col"), mpu); });
      auto down = seeded([&] { return nn::Linear(O(11, 5).parallel("row"), mpu); });
      auto native_up = seeded([] { return torch::nn::Linear(9, 11); });
      auto native_down = seeded([] { return torch::nn::Linear(11, 5); });
      std::vector<Tensor> own = up->parameters(), natives = native_up->parameters();
      for (const Tensor& each : down->parameters()) own.push_back(each);
      for (const Tensor& each : native_down->parameters()) natives.push_back(each);
      torch::optim::SGD optimizer(own, 0.5), native_optimizer(natives, 0.5);
      for (int step = 0; step < 2; ++step) {
        const Tensor whole = drawn({7, 9}), x = own_leaf(whole), reference = own_leaf(whole);
        optimizer.zero_grad();
        native_optimizer.zero_grad();
        const Tensor y = down(torch::gelu(up(by_rows(x, mpu))));
        const Tensor expected = native_down(torch::gelu(native_up(reference)));
        const int rank = mpu.get_data_parallel_rank();
        expect_close(local_tensor(y).detach(), expected.detach().tensor_split(grid.data)[rank],
                     "output");
        const Tensor loss = y.pow(2).mean();
        expected.pow(2).mean().backward();
        loss.backward();
        expect_close(x.grad(), reference.grad(), "input gradient");
        expect_gradients(up, native_up);
        expect_gradients(down, native_down);
        optimizer.step();
        native_optimizer.step();
      }
      expect_close(full_tensor(up->weight).detach(), native_up->weight.detach(), "up");
      expect_close(full_tensor(down->weight).detach(), native_down->weight.detach(), "down");
    });
  }
}

/// The price of the data axis: each parameter's gradient is summed over it once, and nothing else.
TEST(GlobalInputs, GradientsAreSummedOverDataRanksOnce) {
  on_grid({2, 2}, [](const MPU& mpu) {
    auto layer = seeded(
        [&] { return nn::Linear(nn::LinearOptions(6, 8).parallel("col").bias(false), mpu); });
    const Tensor x = drawn({4, 6}, false);
    const auto& ledger = mpu.data_group()->ledger();
    const Traffic before = ledger.total("");
    const Tensor y = layer(by_rows(x, mpu));
    EXPECT_EQ(ledger.total("") - before, Traffic());
    y.backward(torch::ones({4, 8}));
    EXPECT_EQ(ledger.total("") - before, all_reduce_of(2, 4 * 6));
  });
}

/// Inputs cut along features, with more ranks than rows, of three dimensions, in another order.
TEST(GlobalInputs, EveryPlacementOfTheInputGivesOneDevicesNumbers) {
  const std::vector<std::vector<Placement>> ways = {
      {sbp::split(0), sbp::split(2)}, {sbp::broadcast, sbp::split(2)},
      {sbp::split(1), sbp::split(0)}, {sbp::split(2), sbp::broadcast},
      {sbp::split(2), sbp::split(2)}, {sbp::broadcast, sbp::broadcast}};
  for (const char* parallel : {"col", "row", "data"}) {
    for (size_t way = 0; way < ways.size(); ++way) {
      SCOPED_TRACE(std::string(parallel) + " " + std::to_string(way));
      on_grid({3, 2}, [&](const MPU& mpu) {
        auto layer =
            seeded([&] { return nn::Linear(nn::LinearOptions(5, 7).parallel(parallel), mpu); });
        auto native = seeded([] { return torch::nn::Linear(5, 7); });
        const Tensor whole = drawn({2, 3, 5}), x = own_leaf(whole), reference = own_leaf(whole);
        const MeshPtr mesh = way % 2 == 0 ? both(mpu) : mpu.mesh({"tensor", "data"});
        const Tensor y = layer(distribute(x, mesh, ways[way]));
        const Tensor expected = native(reference);
        expect_close(full_tensor(y).detach(), expected.detach(), "output");
        y.sin().sum().backward();
        expected.sin().sum().backward();
        expect_close(x.grad(), reference.grad(), "input gradient");
        expect_gradients(layer, native);
      });
    }
  }
}

TEST(GlobalInputs, AGatheredOutputStaysCutOverDataRanks) {
  on_grid({2, 2}, [](const MPU& mpu) {
    auto layer = seeded([&] {
      return nn::Linear(nn::LinearOptions(5, 7).parallel("col").gather_output(true), mpu);
    });
    auto native = seeded([] { return torch::nn::Linear(5, 7); });
    const Tensor whole = drawn({3, 5}), x = own_leaf(whole), reference = own_leaf(whole);
    const Tensor y = layer(by_rows(x, mpu)), expected = native(reference);
    expect_close(local_tensor(y).detach(),
                 expected.detach().tensor_split(2)[mpu.get_data_parallel_rank()], "output");
    y.pow(2).sum().backward();
    expected.pow(2).sum().backward();
    expect_close(x.grad(), reference.grad(), "input gradient");
    expect_gradients(layer, native);
  });
}

TEST(GlobalInputs, AVocabularyParallelTableLooksUpIdsOfAllDataRanks) {
  for (const Grid& grid : kGrids) {
    SCOPED_TRACE(std::to_string(grid.data) + " x " + std::to_string(grid.tensor));
    on_grid(grid, [&](const MPU& mpu) {
      const auto options = torch::nn::EmbeddingOptions(11, 5).padding_idx(7);
      auto table = seeded([&] { return nn::VocabParallelEmbedding(options, mpu); });
      auto native = seeded([&] { return torch::nn::Embedding(options); });
      const Tensor ids = torch::tensor({{0, 7, 10}, {3, 3, 5}, {7, 1, 0}, {9, 2, 6}, {4, 4, 4}});
      const Tensor y = table(by_rows(ids, mpu)), expected = native(ids);
      expect_close(local_tensor(y).detach(),
                   expected.detach().tensor_split(grid.data)[mpu.get_data_parallel_rank()],
                   "output");
      const Tensor weights = torch::linspace(-1, 1, expected.numel()).view(expected.sizes());
      (y * weights).sum().backward();
      (expected * weights).sum().backward();
      expect_gradients(table, native);
    });
  }
}

/// `placement("cuda", ranks=[0, 1])`: a mesh of these ranks, which layers over them meet.
TEST(GlobalInputs, AListOfRanksIsAMesh) {
  run_as_threads(4, [](World world) {
    const MPU mpu(world, MpuOptions().tensor_parallel_size(2));
    const bool first = world.rank() < 2;
    const MeshPtr pair = first ? placement(world, {0, 1}) : placement(world, {2, 3});
    auto layer = seeded([&] { return nn::Linear(nn::LinearOptions(5, 3).parallel("row"), mpu); });
    auto native = seeded([] { return torch::nn::Linear(5, 3); });
    const Tensor whole = drawn({4, 5}), x = own_leaf(whole), reference = own_leaf(whole);
    const Tensor cut = distribute(x, pair, {sbp::split(1)});
    EXPECT_EQ(local_tensor(cut).size(1), world.rank() % 2 == 0 ? 3 : 2);
    layer(cut).pow(2).sum().backward();
    native(reference).pow(2).sum().backward();
    expect_close(x.grad(), reference.grad(), "input gradient");
    expect_gradients(layer, native);

    const MeshPtr rows = placement(world, {{0, 1}, {2, 3}});
    const Tensor by_mesh = distribute(drawn({3, 5}, false), rows, {sbp::split(0), sbp::broadcast});
    const Tensor by_mpu = by_rows(drawn({3, 5}, false), mpu);
    EXPECT_TRUE(torch::equal(local_tensor(by_mesh), local_tensor(by_mpu)));
    EXPECT_TRUE(torch::equal(full_tensor(by_mesh + by_mpu), 2 * drawn({3, 5}, false)));
  });
}

TEST(GlobalInputs, RanksThatAPlacementCannotHaveAreRefusedByName) {
  EXPECT_THAT(test::errors_of(2,
                              [](World world) {
                                placement(world, {0, 2});
                              }),
              Each(AllOf(HasSubstr("ranks 0 2"), HasSubstr("none of the world's 2"))));
  EXPECT_THAT(test::errors_of(2,
                              [](World world) {
                                placement(world, {0, 1, 0});
                              }),
              Each(HasSubstr("stands twice")));
  EXPECT_THAT(test::errors_of(2, [](World world) { placement(world, std::vector<int>{}); }),
              Each(HasSubstr("no ranks")));
  using Rows = std::vector<std::vector<int>>;
  EXPECT_THAT(test::errors_of(3,
                              [](World world) {
                                placement(world, Rows{{0, 1}, {2}});
                              }),
              Each(HasSubstr("rows of 1 and 2")));
  const auto elsewhere = test::errors_of(2, [](World world) { placement(world, {0}); });
  EXPECT_EQ(elsewhere[0], "");
  EXPECT_THAT(elsewhere[1], AllOf(HasSubstr("on rank 1"), HasSubstr("on its ranks alone")));
}

/// Operators beside layers: of both meshes, on lists, in place.
TEST(GlobalInputs, ValuesOfTheTensorRanksMeetThoseOfBothAxes) {
  on_grid({2, 2}, [](const MPU& mpu) {
    const Tensor a = drawn({3, 5}, false), b = drawn({3, 5}, false) + 1;
    const Tensor narrow = distribute(a, mpu.mesh({"tensor"}), {sbp::split(1)});
    const Tensor wide = by_rows(b, mpu);
    expect_close(full_tensor(narrow * wide), a * b, "narrow first");
    expect_close(full_tensor(wide - narrow), b - a, "wide first");
    expect_close(full_tensor(torch::stack({narrow, wide, narrow})), torch::stack({a, b, a}),
                 "list");
    Tensor target = distribute(a, mpu.mesh({"tensor"}), {sbp::split(1)});
    target.add_(wide);
    expect_close(full_tensor(target), a + b, "in place, narrow");
    EXPECT_EQ(layout(target)->axes(), 1);
    Tensor other = by_rows(b, mpu);
    other.mul_(narrow);
    expect_close(full_tensor(other), b * a, "in place, wide");
    Tensor copy = distribute(torch::zeros({3, 5}), mpu.mesh({"tensor"}), {sbp::split(1)});
    copy.copy_(wide);
    expect_close(full_tensor(copy), b, "copied, narrow");
    EXPECT_EQ(layout(copy)->axes(), 1);
  });
}

/// No mesh has the axes of both: refused, with the mesh to take.
TEST(GlobalInputs, MeshesOfWhichNoneHoldsTheOtherAreRefusedByName) {
  on_grid({2, 2}, [](const MPU& mpu) {
    const Tensor x = distribute(torch::ones({4, 6}), mpu.mesh({"data"}), {sbp::split(0)});
    auto layer = seeded([&] { return nn::Linear(nn::LinearOptions(6, 8).parallel("col"), mpu); });
    EXPECT_THAT(test::error_of([&] { layer(x); }),
                AllOf(HasSubstr("values of two meshes"),
                      HasSubstr("mpu.mesh({\"data\", \"tensor\"})"), HasSubstr("full_tensor")));
  });
}

}  // namespace
}  // namespace oslo::layers_test
