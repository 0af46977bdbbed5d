// Random numbers are drawn in memory order: programs whose values lie channels last, or transposed,
// draw the same numbers over ranks as on one device, also where a rank has one channel or the part
// behind a slice is all that is left.
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tests/support/own_draws.h"
#include "tests/support/placed_values.h"

namespace {

using placed_values::Tensor;

struct DrawingNet {
  Tensor image, first, second;  ///< of 4 channels to 7; of 5 to 3
};

DrawingNet drawing_net(at::MemoryFormat format) {
  using placed_values::numbers;
  return {numbers({2, 4, 5, 6}).contiguous(format), numbers({7, 4, 3, 3}, 0.7).contiguous(format),
          numbers({3, 5, 3, 3}, 1.1).contiguous(format)};
}

/// Everything that is drawn on the way, and the result.
std::vector<Tensor> draw_on_the_way(const DrawingNet& net) {
  std::vector<Tensor> seen;
  const auto noisy = [&](const Tensor& h) {
    seen.push_back(at::randn_like(h));
    seen.push_back(at::empty_like(h).bernoulli_(0.5));
    seen.push_back(at::dropout(h + seen[seen.size() - 2], 0.3, /*train=*/true));
    return seen.back();
  };
  Tensor h = noisy(at::conv2d(net.image, net.first, {}, 1, 1));
  h = noisy(h.slice(1, 0, 5));  // along the cut
  h = noisy(at::conv2d(h, net.second, {}, 1, 1));
  h = noisy(at::softmax(h, 1));  // along cut channels
  h = noisy(h.transpose(1, 3).slice(3, 0, 2));
  h = noisy(at::sigmoid(h.sum(3)));
  seen.push_back(h);
  return seen;
}

class MemoryOrder : public testing::TestWithParam<std::tuple<int, at::MemoryFormat>> {};

TEST_P(MemoryOrder, DrawsOneDevicesNumbers) {
  const int ranks = std::get<0>(GetParam());
  const at::MemoryFormat format = std::get<1>(GetParam());
  constexpr uint64_t kSeed = 23;
  DrawingNet whole = drawing_net(format);
  std::vector<Tensor> expected;
  {
    const oslo::test::OwnDraws draws(kSeed);
    whole.first.set_requires_grad(true);
    whole.second.set_requires_grad(true);
    expected = draw_on_the_way(whole);
    expected.back().sum().backward();
  }
  placed_values::on_ranks(ranks, [&](const oslo::MPU& mpu) {
    const oslo::test::OwnDraws draws(kSeed);
    const DrawingNet plain = drawing_net(format);
    const DrawingNet net{plain.image, placed_values::marked(plain.first, mpu),
                         placed_values::marked(plain.second, mpu)};
    const auto seen = draw_on_the_way(net);
    seen.back().sum().backward();
    for (size_t i = 0; i < seen.size(); ++i) {
      placed_values::expect_close(seen[i], expected[i], "draw " + std::to_string(i));
    }
    placed_values::expect_close(net.first.grad(), whole.first.grad(), "first.grad");
    placed_values::expect_close(net.second.grad(), whole.second.grad(), "second.grad");
  });
}

INSTANTIATE_TEST_SUITE_P(Nets, MemoryOrder,
                         testing::Combine(testing::Values(2, 3),
                                          testing::Values(at::MemoryFormat::Contiguous,
                                                          at::MemoryFormat::ChannelsLast)));

/// The operators of LibTorch that a program tells in which order the copy of a tensor is to lie.
std::vector<c10::OperatorHandle> told_a_format() {
  std::vector<c10::OperatorHandle> found;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    const bool kept = name.name.rfind("aten::", 0) == 0 && op && op->hasSchema() &&
                      name.name.find("quantized") == std::string::npos &&
                      name.name.find("nested") == std::string::npos &&
                      name.name.find("sparse") == std::string::npos;
    if (!kept || op->schema().arguments().empty()) continue;
    const auto& arguments = op->schema().arguments();
    const bool of_tensor = arguments[0].type()->kind() == c10::TypeKind::TensorType;
    if (!of_tensor || arguments.back().name() != "memory_format") continue;
    found.push_back(*op);
  }
  return found;
}

/// Its results, of a float tensor; nothing where it wants what no tensor has.
std::optional<Tensor> copy_of(const c10::OperatorHandle& op, const Tensor& x,
                              at::MemoryFormat format) {
  torch::jit::Stack stack;
  for (const c10::Argument& argument : op.schema().arguments()) {
    if (stack.empty() || argument.name() == "other") {
      stack.emplace_back(x);
    } else if (argument.name() == "memory_format") {
      stack.emplace_back(static_cast<int64_t>(format));
    } else if (argument.name() == "dtype" && op.operator_name().name == "aten::to") {
      stack.emplace_back(static_cast<int64_t>(at::kDouble));
    } else if (argument.name() == "device" && op.operator_name().name == "aten::to") {
      stack.emplace_back(c10::Device(at::kCPU));
    } else if (argument.default_value()) {
      stack.push_back(*argument.default_value());
    } else if (argument.type()->kind() == c10::TypeKind::NumberType) {
      stack.emplace_back(c10::Scalar(3));
    } else if (argument.type()->kind() == c10::TypeKind::IntType ||
               argument.type()->kind() == c10::TypeKind::SymIntType) {
      stack.emplace_back(int64_t{3});
    } else if (argument.type()->kind() == c10::TypeKind::OptionalType) {
      stack.emplace_back();
    } else {
      return std::nullopt;
    }
  }
  op.callBoxed(&stack);
  return stack.front().toTensor();
}

TEST(MemoryFormats, OfEveryOperatorThatIsToldOneAreKept) {
  const Tensor whole = placed_values::numbers({4, 3, 6, 9}).to(at::kFloat);
  std::set<std::string> called;
  for (const c10::OperatorHandle& op : told_a_format()) {
    const std::string name = c10::toString(op.operator_name());
    const at::MemoryFormat format = at::MemoryFormat::ChannelsLast;
    std::optional<Tensor> expected;
    try {
      expected = copy_of(op, whole, format);
    } catch (const std::exception&) {
      continue;  // of complex numbers, of another device
    }
    if (!expected) continue;
    called.insert(op.operator_name().name);
    for (const int ranks : {2, 8}) {
      placed_values::on_ranks(ranks, [&](const oslo::MPU& mpu) {
        for (int64_t cut = 0; cut < whole.dim(); ++cut) {
          const Tensor copy = *copy_of(op, placed_values::placed(whole, mpu, cut), format);
          EXPECT_EQ(copy.strides(), expected->strides())
              << name << " of a value cut on " << cut << " over " << ranks << " ranks";
        }
      });
    }
  }
  for (const char* name : {"aten::to", "aten::clone", "aten::contiguous", "aten::_to_copy",
                           "aten::empty_like", "aten::randn_like", "aten::zeros_like"}) {
    EXPECT_EQ(called.count(name), 1u) << name;
  }
}

}  // namespace
