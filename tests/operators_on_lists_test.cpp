// Every operator that LibTorch has for lists of tensors (`_foreach_`, `_amp_`), in all its
// overloads, on what an optimizer or a gradient scaler hands it: parameters, some cut and some not.
#include <ATen/core/dispatch/Dispatcher.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <set>

#include "tests/support/placed_values.h"

namespace oslo {
namespace {

using namespace placed_values;
using Stack = torch::jit::Stack;

/// The sizes of a list, and along which dimension each is cut; -1: whole on every rank.
struct Entry {
  std::vector<int64_t> sizes;
  int64_t dim;
};
const std::vector<Entry> kList{{{5, 3}, 0}, {{7}, -1}, {{4, 5}, 1}, {{2, 3}, 0}};

/// Between 0.1 and 0.9, where every function of one variable is defined.
Tensor fractions(at::IntArrayRef sizes, double start) {
  return numbers(sizes, start) * 0.4 + 0.5;
}

bool is_out(const c10::Argument& argument) {
  return argument.kwarg_only() && argument.alias_info() && argument.alias_info()->isWrite();
}

/// Arguments of one call by its schema: on one device where `mpu` is null. None where the schema
/// asks for something that this test does not know.
std::optional<Stack> arguments_of(const c10::OperatorHandle& op, const MPU* mpu, bool records) {
  const auto made = [&](const Tensor& whole, int64_t dim) {
    if (mpu == nullptr || dim < 0) return leaf(whole).set_requires_grad(records);
    return marked(whole, *mpu, dim).set_requires_grad(records);
  };
  const std::string& name = op.schema().name();
  const bool of_elements = name.find("norm") == std::string::npos &&
                           name.find("powsum") == std::string::npos && name != "aten::_foreach_max";
  Stack stack;
  double start = 0.3;
  for (const c10::Argument& argument : op.schema().arguments()) {
    const auto& type = *argument.type();
    if (type.isSubtypeOf(*c10::ListType::ofTensors())) {
      std::vector<Tensor> list;
      start += 1;
      for (const Entry& entry : kList) {
        const bool number = is_out(argument) && !of_elements;
        const Tensor whole = number             ? at::zeros({}, at::kDouble)
                             : is_out(argument) ? at::zeros(entry.sizes, at::kDouble)
                                                : fractions(entry.sizes, start);
        list.push_back(
            made(whole, number ? -1 : entry.dim).set_requires_grad(records && !is_out(argument)));
      }
      stack.emplace_back(list);
    } else if (type == *c10::NumberType::get() || type.kind() == c10::TypeKind::FloatType) {
      stack.emplace_back(2.0);
    } else if (type.kind() == c10::TypeKind::IntType) {
      stack.emplace_back(int64_t{3});
    } else if (type.kind() == c10::TypeKind::TensorType) {
      // A factor of all, or (addcmul and addcdiv) one of each, packed.
      const bool packed = name.find("_addc") != std::string::npos;
      const bool count = argument.name() == "growth_tracker";
      stack.emplace_back(
          packed  ? at::linspace(0.5, 1.5, kList.size(), at::kDouble)
          : count ? at::zeros({}, at::kInt)
          : name.find("_amp_") != std::string::npos
              ? at::full({}, argument.name() == "found_inf" || is_out(argument) ? 0.0 : 0.5)
              : at::full({}, 0.5, at::kDouble));
    } else if (type.kind() == c10::TypeKind::ListType) {
      stack.emplace_back(c10::IValue(c10::List<c10::Scalar>({0.5, 0.25, 2.0, 0.75})));
    } else if (argument.default_value()) {
      stack.emplace_back(*argument.default_value());
    } else {
      return std::nullopt;
    }
  }
  return stack;
}

/// What a call leaves: its results, and what its arguments became.
struct Left {
  std::vector<std::vector<Tensor>> tensors;
  std::string error;
};

void keep(const c10::IValue& value, Left& left) {
  if (value.isTensor()) left.tensors.push_back({value.toTensor()});
  if (value.isTensorList()) left.tensors.push_back(value.toTensorVector());
}

Left call(const c10::OperatorHandle& op, Stack stack) {
  const Stack arguments = stack;
  Left left;
  try {
    op.callBoxed(stack);
  } catch (const std::exception& error) {
    left.error = error.what();
    return left;
  }
  for (const c10::IValue& argument : arguments) keep(argument, left);
  for (const c10::IValue& result : stack) keep(result, left);
  return left;
}

/// Gradients of what went in, where the call records any. Whether LibTorch has them.
bool backward(const Left& left, size_t results_from) {
  Tensor sum = at::zeros({}, at::kDouble);
  for (size_t i = results_from; i < left.tensors.size(); ++i) {
    for (const Tensor& each : left.tensors[i]) {
      if (each.requires_grad()) sum = sum + each.pow(2).sum();
    }
  }
  try {
    if (sum.requires_grad()) full_tensor(sum).backward();
  } catch (const c10::Error&) {
    return false;
  }
  return true;
}

size_t tensors_among(const Stack& arguments) {
  return std::count_if(arguments.begin(), arguments.end(), [](const c10::IValue& each) {
    return each.isTensor() || each.isTensorList();
  });
}

void expect_same(const std::string& what, const Left& actual, const Left& expected) {
  ASSERT_EQ(actual.tensors.size(), expected.tensors.size()) << what;
  for (size_t i = 0; i < actual.tensors.size(); ++i) {
    ASSERT_EQ(actual.tensors[i].size(), expected.tensors[i].size()) << what;
    for (size_t k = 0; k < actual.tensors[i].size(); ++k) {
      const std::string which = c10::str(what, ", list ", i, ", tensor ", k);
      expect_close(actual.tensors[i][k], expected.tensors[i][k], which, 1e-6);
      if (!expected.tensors[i][k].is_leaf() || !actual.tensors[i][k].is_leaf()) continue;
      expect_close(actual.tensors[i][k].grad(), expected.tensors[i][k].grad(),
                   which + ", gradient");
    }
  }
}

/// Operators on lists that C++ and Python call, by LibTorch's own register.
std::vector<c10::OperatorHandle> operators_on_lists() {
  std::vector<c10::OperatorHandle> found;
  std::set<std::string> names;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const bool on_lists = name.name.rfind("aten::_foreach_", 0) == 0;
    const bool of_scaler = name.name.rfind("aten::_amp_", 0) == 0;
    if (!on_lists && !of_scaler) continue;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (op && names.insert(c10::toString(name)).second) found.push_back(*op);
  }
  return found;
}

/// Such a call computes what one device does. Some of those that write out= tensors are refused, on
/// every rank: by name, or as they would not record what they are given, which LibTorch keeps
/// quiet.
TEST(OperatorsOnLists, AllOverloadsComputeWhatOneDeviceDoes) {
  size_t compared = 0;
  for (const c10::OperatorHandle& op : operators_on_lists()) {
    const std::string name = c10::toString(op.operator_name());
    if (!arguments_of(op, nullptr, false)) {
      ADD_FAILURE() << name << ": " << op.schema() << " takes what this test does not know";
      continue;
    }
    const auto& schema = op.schema().arguments();
    const bool has_out = std::any_of(schema.begin(), schema.end(), is_out);
    for (const bool records : {false, true}) {
      const Stack on_one_device = *arguments_of(op, nullptr, records);
      const Left expected = call(op, on_one_device);
      if (!expected.error.empty()) {
        EXPECT_TRUE(records) << name << ": " << expected.error;  // it writes leaves
        continue;
      }
      const bool differentiable = backward(expected, tensors_among(on_one_device));
      ++compared;
      std::atomic<int> refused = 0;
      on_ranks(3, [&](const MPU& mpu) {
        at::set_num_threads(1);
        const Stack arguments = *arguments_of(op, &mpu, records);
        const Left actual = call(op, arguments);
        if (has_out && !actual.error.empty()) {
          const bool names_it = actual.error.rfind(name + " writes to an out= tensor", 0) == 0;
          const bool of_leaves = actual.error.find("torch::NoGradGuard") != std::string::npos;
          EXPECT_TRUE(names_it || (records && of_leaves)) << name << ": " << actual.error;
          ++refused;
          return;
        }
        ASSERT_EQ(actual.error, "") << name;
        if (!differentiable) return;
        backward(actual, tensors_among(arguments));
        expect_same(name + (records ? ", recorded" : ""), actual, expected);
      });
      EXPECT_EQ(refused % 3, 0) << name << " is refused on some ranks only";
    }
  }
  EXPECT_GT(compared, 300u);
}

}  // namespace
}  // namespace oslo
