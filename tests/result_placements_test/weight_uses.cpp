// What is planned for the uses of a weight: which tensors it belongs to, and what each word does.
#include "parallelizers/placement/layout/weight_uses.h"
#include "parallelizers/placement/carrier/mark.h"
#include "tests/support/parity.h"
#include "tests/support/placed_values.h"

namespace result_placements {
namespace {

using oslo::AxisUse;
using oslo::WeightUses;
using placed_values::expect_close;
using placed_values::numbers;
using torch::Tensor;

/// A weight (5, 6) that is cut by row over three ranks; products with it are scattered along their
/// rows.
Tensor scattering_weight(const oslo::MPU& mpu) {
  Tensor weight = placed_values::marked(numbers({5, 6}, 0.7), mpu, 1);
  set_weight_uses(weight, std::make_shared<WeightUses>(
                              WeightUses{"weight", {AxisUse{AxisUse::Result::scatter, 0}}, {}}));
  return weight;
}

/// Along which dimension x w^T is cut, of which the whole is compared with one device; -1: whole.
int64_t cut_of_product(const Tensor& x, const Tensor& transposed, const Tensor& expected) {
  const Tensor y = x.matmul(transposed);
  expect_close(y, expected, "product", 1e-5);
  const oslo::LayoutPtr layout = oslo::layout(y);
  return layout ? (*layout)[0].dim : -1;
}

TEST(WeightUses, BelongToTheWeightInAnyForm) {
  placed_values::on_ranks(3, [](const oslo::MPU& mpu) {
    const Tensor weight = scattering_weight(mpu), x = numbers({4, 6});
    const Tensor expected = x.matmul(numbers({5, 6}, 0.7).t());
    EXPECT_EQ(cut_of_product(x, weight.t(), expected), 0);
    EXPECT_EQ(cut_of_product(x, weight.transpose(0, 1), expected), 0);
    EXPECT_EQ(cut_of_product(x, weight.detach().t(), expected), 0);
    EXPECT_EQ(cut_of_product(x, weight.t().detach(), expected), 0);
    EXPECT_EQ(cut_of_product(x, weight.alias().t().alias(), expected), 0);
    EXPECT_EQ(cut_of_product(x.to(torch::kFloat), weight.t().to(torch::kFloat),
                             expected.to(torch::kFloat)),
              0);
    EXPECT_EQ(cut_of_product(x.to(torch::kFloat), weight.to(torch::kFloat).t(),
                             expected.to(torch::kFloat)),
              0);
  });
}

TEST(WeightUses, EndWhereSomethingIsComputed) {
  placed_values::on_ranks(3, [](const oslo::MPU& mpu) {
    const Tensor weight = scattering_weight(mpu), x = numbers({4, 6});
    const Tensor expected = x.matmul(numbers({5, 6}, 0.7).t());
    EXPECT_EQ(cut_of_product(x, (weight * 1).t(), expected), -1);
    EXPECT_EQ(cut_of_product(x, weight.t() * 1, expected), -1);
    EXPECT_EQ(cut_of_product(x, (weight.t() + 0).contiguous(), expected), -1);
    // A look-up in the same tensor is another kind of use.
    const Tensor rows = torch::embedding(weight, torch::tensor({1, 4, 1, 0}));
    expect_close(rows, numbers({5, 6}, 0.7).index({torch::tensor({1, 4, 1, 0})}), "rows");
    EXPECT_EQ((*oslo::layout(rows))[0].dim, 1);  // features, as the weight
  });
}

/// Two layers without an embedding, whose batch is cut by the first one's input.
struct TwoLayersImpl : torch::nn::Module {
  TwoLayersImpl() {
    first = register_module("first", torch::nn::Linear(6, 5));
    second = register_module("second", torch::nn::Linear(5, 4));
  }
  Tensor forward(const Tensor& x) { return second->forward(torch::tanh(first->forward(x))); }
  torch::nn::Linear first = nullptr, second = nullptr;
};
TORCH_MODULE(TwoLayers);

void expect_two_layers(const std::string& plan, int64_t gathered_inputs) {
  parity::Setup setup;
  setup.world = 3;
  setup.config =
      R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 3}, "plan": )" + plan + "}";
  setup.example = true;
  const auto batch = [](int) {
    return parity::Batch{torch::randn({7, 6}, torch::kDouble),
                         torch::randn({7, 4}, torch::kDouble)};
  };
  const auto loss = [](const Tensor& y, const Tensor& target) {
    return (y - target).pow(2).mean();
  };
  parity::expect_parity(
      setup, [] { return TwoLayers(); }, batch, loss,
      [&](const parity::Outcome& outcome) {
        int64_t gathers = 0;
        for (const oslo::PlanTraffic& line : outcome.parallel.plan().traffic) {
          const bool product = line.entry.rule == "aten::addmm";
          if (product && line.entry.operation == "all_gather") gathers += line.entry.traffic.calls;
        }
        EXPECT_EQ(gathers, gathered_inputs);
      });
}

TEST(WeightUses, AnInputIsCutByBatch) {
  expect_two_layers(R"({"first": "replicate input=0", "second": "replicate"})", 0);
}
// The second layer's features are cut: its input is gathered, once in each of three steps, though
// the weight is smaller.
TEST(WeightUses, AnInputIsGatheredForFeaturesThatAreCut) {
  expect_two_layers(R"({"first": "replicate input=0", "second": "column"})", 3);
}
// Backward gathers the gradient of the first layer's product.
TEST(WeightUses, AWholeResultIsSplit) {
  expect_two_layers(R"({"first": "replicate split=-2", "second": "replicate"})", 3);
}

}  // namespace
}  // namespace result_placements
