// One linear layer on grids of two and three axes, by layouts and by what is planned for the
// weight's results alone: 2D and 3D tensor parallelism (arXiv 2104.05343, 2105.14450). Output and
// gradients are those of one device; messages and bytes are those of the papers' formulas.
#include <map>
#include <numeric>

#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/layout/weight_uses.h"
#include "tests/support/placed_values.h"

namespace result_placements {
namespace {

using oslo::AxisUse;
using oslo::Layout;
using oslo::MeshPtr;
using oslo::Traffic;
using placed_values::expect_close;
using placed_values::full_tensor;
using placed_values::leaf;
using placed_values::numbers;
using placed_values::Placement;
using placed_values::Tensor;

Placement cut(int64_t dim) {
  return Placement::shard(dim);
}
Placement whole() {
  return Placement::replicate();
}

/// A placement an axis, and which axis is the outer one where two cut one dimension.
struct Lies {
  std::vector<Placement> placements;
  std::vector<int> order = {};
};

/// How a linear layer x (M, K), weight (N, K), bias (N) lies on a grid, and what comes of it.
struct Mode {
  int axes;
  Lies x, weight, bias;
  std::vector<AxisUse> use;
  std::vector<Placement> result;
};

constexpr AxisUse kReduce{};
constexpr AxisUse kScatterRows{AxisUse::Result::scatter, -2};

/// Axes (row, column). The bias is cut by columns first, against the order of the axes.
Mode two_dimensional() {
  return {2,
          {{cut(0), cut(1)}},
          {{cut(1), cut(0)}},
          {{cut(0), cut(0)}, {1, 0}},
          {kReduce, kReduce},
          {cut(0), cut(1)}};
}

/// Axes (input, weight, output): each operand, and the result, is whole on none. The weight's input
/// features are cut over the output axis first, against the order of the axes.
Mode three_dimensional() {
  return {3,
          {{cut(0), cut(0), cut(1)}},
          {{cut(1), cut(0), cut(1)}, {2, 0, 1}},
          {{whole(), cut(0), whole()}},
          {kReduce, kReduce, kScatterRows},
          {cut(0), cut(1), cut(0)}};
}

MeshPtr mesh_of(const oslo::MPU& mpu, int axes) {
  std::vector<std::shared_ptr<oslo::Group>> groups{mpu.data_group(), mpu.tensor_group()};
  if (axes == 3) groups.insert(groups.begin(), mpu.pipeline_group());
  return std::make_shared<oslo::Mesh>(std::move(groups));
}

oslo::LayoutPtr layout_of(const MeshPtr& mesh, const Lies& lies, at::IntArrayRef sizes) {
  return std::make_shared<Layout>(make_layout(mesh, lies.placements, sizes, lies.order));
}

Tensor marked(const Tensor& whole, const MeshPtr& mesh, const Lies& lies, const char* name) {
  Tensor parameter = leaf(whole);
  oslo::mark_parameter(parameter, layout_of(mesh, lies, whole.sizes()), name);
  return parameter;
}

/// What the products moved, by axis and collective: calls of this rank, elements that all ranks
/// together received.
using Calls = std::map<std::string, std::pair<int64_t, int64_t>>;

Calls traffic_of(const MeshPtr& mesh, oslo::Group& all) {
  Calls calls;
  for (int axis = 0; axis < mesh->axes(); ++axis) {
    for (const char* operation : {"all_gather", "reduce_scatter", "all_reduce"}) {
      Traffic sum;
      for (const oslo::LedgerEntry& entry : mesh->axis(axis)->ledger().entries()) {
        const bool product = entry.rule == "aten::matmul" || entry.rule == "aten::addmm";
        if (product && entry.operation == operation) sum += entry.traffic;
      }
      int64_t elements = 0;
      for (const int64_t one : all.exchange(sum.elements)) elements += one;
      if (sum.calls > 0) calls[c10::str(operation, " ", axis)] = {sum.calls, elements};
    }
  }
  return calls;
}

struct Sizes {
  int64_t m, k, n;
};

/// `moved`: by the products, forward and backward; not looked at when empty.
void expect_as_one_device(const Mode& mode, Sizes sizes, bool with_bias, const Calls& moved = {}) {
  const int ranks = mode.axes == 2 ? 4 : 8;
  oslo::run_as_threads(ranks, [&](oslo::World world) {
    at::set_num_threads(1);
    oslo::MpuOptions options;
    options.tensor_parallel_size(2);
    if (mode.axes == 3) options.pipeline_parallel_size(2);
    const oslo::MPU mpu(world, options);
    const MeshPtr mesh = mesh_of(mpu, mode.axes);
    const auto [m, k, n] = sizes;

    torch::nn::Linear reference(torch::nn::LinearOptions(k, n).bias(with_bias));
    reference->weight = leaf(numbers({n, k}, 0.7));
    if (with_bias) reference->bias = leaf(numbers({n}, 1.9));
    torch::nn::Linear linear(torch::nn::LinearOptions(k, n).bias(with_bias));
    linear->weight = marked(reference->weight, mesh, mode.weight, "weight");
    if (with_bias) linear->bias = marked(reference->bias, mesh, mode.bias, "bias");
    set_weight_uses(linear->weight, std::make_shared<oslo::WeightUses>(oslo::WeightUses{
                                        "weight", {mode.use.begin(), mode.use.end()}, {}}));

    const Tensor x_whole = leaf(numbers({m, k})), x_source = leaf(numbers({m, k}));
    const Tensor x = oslo::distribute(x_source, mesh, mode.x.placements);
    for (int axis = 0; axis < mode.axes; ++axis) mesh->axis(axis)->ledger().clear();
    const Tensor expected = reference(x_whole), y = linear(x);
    const oslo::LayoutPtr lies = oslo::layout(y);
    if (!lies) throw std::runtime_error("the result is whole");
    EXPECT_TRUE(*lies == make_layout(mesh, mode.result, {m, n})) << lies->to_string();
    const Tensor gradient = numbers({m, n}, 2.3);
    (expected * gradient).sum().backward();
    const Tensor loss = (y * oslo::distribute(gradient, mesh, mode.result)).sum();
    loss.backward();
    expect_close(y, expected, "output");
    expect_close(x_source.grad(), x_whole.grad(), "input gradient");
    expect_close(linear->weight.grad(), reference->weight.grad(), "weight gradient");
    if (with_bias) expect_close(linear->bias.grad(), reference->bias.grad(), "bias gradient");
    std::vector<int> everybody(ranks);
    std::iota(everybody.begin(), everybody.end(), 0);
    const auto all = world.make_group("all", everybody);
    if (!moved.empty()) {
      EXPECT_EQ(traffic_of(mesh, *all), moved);
    }
  });
}

// M, K and N differ, and the weight is smaller than the input: where the engine chose by bytes, 3D
// would gather it over the axis that is to gather the input.
constexpr Sizes kEven{12, 8, 4}, kUneven{7, 5, 3};
constexpr int64_t kMK = 96, kKN = 32, kMN = 48, kN = 4;

// With q ranks an axis all ranks together receive 2(q-1)(MK + KN): what is gathered is kept for
// backward. (SUMMA's 3(q-1)(MK + KN) is that of dropping it.)
TEST(LinearModes, TwoDimensional) {
  expect_as_one_device(two_dimensional(), kEven, false,
                       {{"all_gather 0", {1, kKN}},
                        {"reduce_scatter 0", {1, kKN}},
                        {"all_gather 1", {1, kMK}},
                        {"reduce_scatter 1", {1, kMK}}});
}
TEST(LinearModes, TwoDimensionalBiasIsGatheredOverRows) {
  expect_as_one_device(two_dimensional(), kEven, true,
                       {{"all_gather 0", {2, kKN + kN}},
                        {"reduce_scatter 0", {2, kKN + kN}},
                        {"all_gather 1", {1, kMK}},
                        {"reduce_scatter 1", {1, kMK}}});
}
TEST(LinearModes, TwoDimensionalUneven) {
  expect_as_one_device(two_dimensional(), kUneven, true);
}

// 2(q-1)(MK + KN + MN).
TEST(LinearModes, ThreeDimensional) {
  expect_as_one_device(three_dimensional(), kEven, false,
                       {{"all_gather 0", {1, kKN}},
                        {"reduce_scatter 0", {1, kKN}},
                        {"all_gather 1", {1, kMK}},
                        {"reduce_scatter 1", {1, kMK}},
                        {"reduce_scatter 2", {1, kMN}},
                        {"all_gather 2", {1, kMN}}});
}
// Each rank adds N/q of the bias to rows of its own: its gradient is summed over two axes, on which
// all 8 ranks receive N/q.
TEST(LinearModes, ThreeDimensionalWithBias) {
  expect_as_one_device(three_dimensional(), kEven, true,
                       {{"all_gather 0", {1, kKN}},
                        {"reduce_scatter 0", {1, kKN}},
                        {"all_reduce 0", {1, 8 * kN / 2}},
                        {"all_gather 1", {1, kMK}},
                        {"reduce_scatter 1", {1, kMK}},
                        {"reduce_scatter 2", {1, kMN}},
                        {"all_gather 2", {1, kMN}},
                        {"all_reduce 2", {1, 8 * kN / 2}}});
}
TEST(LinearModes, ThreeDimensionalUneven) {
  expect_as_one_device(three_dimensional(), kUneven, true);
}

/// One dimension cut by both axes, in either order: the same value, whatever is computed from it.
TEST(Nesting, EitherOrderGivesTheNumbersOfOneDevice) {
  oslo::run_as_threads(6, [](oslo::World world) {
    at::set_num_threads(1);
    const oslo::MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(3));
    const MeshPtr mesh = mesh_of(mpu, 2);
    const Tensor whole = numbers({7, 6}), weights = numbers({7, 6}, 1.1);
    const Tensor straight = marked(whole, mesh, {{cut(0), cut(0)}, {0, 1}}, "straight");
    const Tensor crossed = marked(whole * 2, mesh, {{cut(0), cut(0)}, {1, 0}}, "crossed");
    // Over 3 ranks 3 + 2 + 2 rows, each in two parts; over 2 ranks 4 + 3, each in three.
    EXPECT_EQ(oslo::layout(crossed)->axes_cutting(0), (oslo::Axes{1, 0}));
    EXPECT_FALSE(*oslo::layout(crossed) == *oslo::layout(straight));
    for (const Tensor& parameter : {straight, crossed}) {
      const Tensor expected = parameter.is_same(straight) ? whole : whole * 2;
      expect_close(parameter.view({-1}), expected.view({-1}), "flat");
      expect_close(parameter.view({-1}).view({7, 2, 3}), expected.view({7, 2, 3}), "and back");
      expect_close(parameter.t().contiguous(), expected.t(), "transposed");
      expect_close(parameter.sum(0), expected.sum(0), "summed");
      expect_close(parameter.index({torch::tensor({6, 0, 3})}),
                   expected.index({torch::tensor({6, 0, 3})}), "rows");
      expect_close(parameter.slice(0, 2, 6), expected.slice(0, 2, 6), "slice");
    }
    // Neither order fits the other.
    const Tensor product = straight * crossed;
    expect_close(product, whole * whole * 2, "product");
    (product * weights).sum().backward();
    expect_close(straight.grad(), whole * 2 * weights, "gradient");
    expect_close(crossed.grad(), whole * weights, "gradient of the crossed one");
  });
}

}  // namespace
}  // namespace result_placements
