// The pointwise operators that models call most: the same numbers whether the operands lie alike,
// which needs no rule, or not.
#include <functional>

#include "tests/support/placed_values.h"

namespace oslo {
namespace {

using namespace placed_values;

using Function = std::function<Tensor(const Tensor&, const Tensor&)>;

const std::vector<std::pair<std::string, Function>> kFunctions = {
    {"add", [](const Tensor& x, const Tensor& y) { return at::add(x, y, 0.5); }},
    {"add a number", [](const Tensor& x, const Tensor&) { return at::add(x, 2, 3); }},
    {"sub", [](const Tensor& x, const Tensor& y) { return x - y; }},
    {"sub a number", [](const Tensor& x, const Tensor&) { return at::sub(x, 2, 3); }},
    {"rsub", [](const Tensor& x, const Tensor&) { return at::rsub(x, 2, 3); }},
    {"mul", [](const Tensor& x, const Tensor& y) { return x * y; }},
    {"mul by a number", [](const Tensor& x, const Tensor&) { return at::mul(x, 1.5); }},
    {"div", [](const Tensor& x, const Tensor& y) { return x / (y + 3); }},
    {"div by a number", [](const Tensor& x, const Tensor&) { return at::div(x, 1.5); }},
    {"pow", [](const Tensor& x, const Tensor&) { return x.pow(3); }},
    {"neg", [](const Tensor& x, const Tensor&) { return -x; }},
    {"exp", [](const Tensor& x, const Tensor&) { return x.exp(); }},
    {"sqrt", [](const Tensor& x, const Tensor&) { return (x + 3).sqrt(); }},
    {"rsqrt", [](const Tensor& x, const Tensor&) { return (x + 3).rsqrt(); }},
    {"gelu", [](const Tensor& x, const Tensor&) { return at::gelu(x); }},
    {"gelu by tanh", [](const Tensor& x, const Tensor&) { return at::gelu(x, "tanh"); }},
    {"relu", [](const Tensor& x, const Tensor&) { return at::relu(x); }},
    {"silu", [](const Tensor& x, const Tensor&) { return at::silu(x); }},
    {"sigmoid", [](const Tensor& x, const Tensor&) { return at::sigmoid(x); }},
    {"tanh", [](const Tensor& x, const Tensor&) { return at::tanh(x); }},
};

/// The second operand, as one device has it and as it lies on the mesh.
struct Beside {
  std::string name;
  Tensor whole;
  std::function<Tensor(const Tensor&, const MPU&)> lay;
};

std::vector<Beside> second_operands() {
  return {
      {"alike", numbers({7, 5}, 1),
       [](const Tensor& y, const MPU& mpu) { return placed(y, mpu, 0); }},
      {"cut otherwise", numbers({7, 5}, 1),
       [](const Tensor& y, const MPU& mpu) { return placed(y, mpu, 1); }},
      {"one row", numbers({1, 5}, 1),
       [](const Tensor& y, const MPU& mpu) { return placed(y, mpu, 1); }},
      {"a plain row", numbers({5}, 1), [](const Tensor& y, const MPU&) { return y; }},
      {"a plain column", numbers({7, 1}, 1), [](const Tensor& y, const MPU&) { return y; }},
      {"a plain number", numbers({}, 1), [](const Tensor& y, const MPU&) { return y; }},
      {"a plain tensor of more dimensions", numbers({2, 7, 5}, 1),
       [](const Tensor& y, const MPU&) { return y; }},
  };
}

TEST(LeanPointwise, GivesWhatOneDeviceGives) {
  on_ranks(3, [](const MPU& mpu) {
    for (const auto& [name, function] : kFunctions) {
      for (const Beside& beside : second_operands()) {
        for (const bool gradient : {true, false}) {
          const std::string what = name + ", beside " + beside.name;
          const c10::AutoGradMode mode(gradient);
          const Tensor x = leaf(numbers({7, 5})), y = leaf(beside.whole);
          const Tensor own_x = leaf(x), own_y = leaf(y);
          const Tensor expected = function(x, y);
          const Tensor actual = function(placed(own_x, mpu, 0), beside.lay(own_y, mpu));
          expect_close(actual, expected, what);
          EXPECT_EQ(actual.requires_grad(), gradient) << what;
          if (!gradient) continue;
          const Tensor weights = numbers(expected.sizes(), 2);
          (expected * weights).sum().backward();
          (actual * weights).sum().backward();
          expect_close(own_x.grad(), x.grad(), what + ", gradient of x");
          expect_close(own_y.grad(), y.grad(), what + ", gradient of y");
        }
      }
    }
  });
}

TEST(LeanPointwise, LeavesMarkedParametersToTheDoor) {
  on_ranks(3, [](const MPU& mpu) {
    const Tensor whole = numbers({7, 5}), x = leaf(whole), w = marked(whole, mpu);
    for (const auto& [name, function] : kFunctions) {
      expect_close(function(w, w), function(x, x), name);
    }
  });
}

}  // namespace
}  // namespace oslo
