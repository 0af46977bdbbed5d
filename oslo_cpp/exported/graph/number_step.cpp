// A node that computes with sizes: what Python does with torch.SymInt while it traces.
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "mpu/base/error.h"
#include "oslo_cpp/exported/graph/steps.h"

namespace oslo::exported {
namespace {

using c10::Scalar;
using Numbers = std::vector<Scalar>;

bool all_whole(const Numbers& numbers) {
  return std::all_of(numbers.begin(), numbers.end(),
                     [](const Scalar& number) { return number.isIntegral(/*includeBool=*/true); });
}

/// Of whole numbers a whole one, else a real one.
template <typename Whole, typename Real>
Scalar either(const Numbers& numbers, Whole whole, Real real) {
  if (all_whole(numbers)) return whole(numbers[0].toLong(), numbers[1].toLong());
  return real(numbers[0].toDouble(), numbers[1].toDouble());
}

template <typename Operation>
Scalar both(const Numbers& numbers, Operation operation) {
  return either(numbers, operation, operation);
}

template <typename Compare>
Scalar compared(const Numbers& numbers, Compare compare) {
  const bool result = all_whole(numbers) ? compare(numbers[0].toLong(), numbers[1].toLong())
                                         : compare(numbers[0].toDouble(), numbers[1].toDouble());
  return Scalar(result);
}

template <typename T>
void check_divisor(T divisor) {
  OSLO_CHECK(divisor != 0, "the exported program divides by a size that is 0");
}

/// Towards minus infinity, as Python rounds.
int64_t floor_divided(int64_t dividend, int64_t divisor) {
  check_divisor(divisor);
  const int64_t quotient = dividend / divisor;
  return dividend % divisor != 0 && (dividend < 0) != (divisor < 0) ? quotient - 1 : quotient;
}

Scalar power(const Numbers& numbers) {
  if (!all_whole(numbers) || numbers[1].toLong() < 0) {
    return std::pow(numbers[0].toDouble(), numbers[1].toDouble());
  }
  const int64_t base = numbers[0].toLong();
  int64_t result = 1;
  for (int64_t i = numbers[1].toLong(); i > 0; --i) {
    OSLO_CHECK(!__builtin_mul_overflow(result, base, &result),
               "the exported program takes a size to a power beyond 64 bits");
    if (result == 0 || base == 1) break;
  }
  return result;
}

struct NumberOperator {
  std::string_view target;
  size_t operands;
  Scalar (*compute)(const Numbers&);
};

using N = const Numbers&;
constexpr NumberOperator kOperators[] = {
    {"_operator.add", 2, [](N n) { return both(n, [](auto a, auto b) { return a + b; }); }},
    {"_operator.sub", 2, [](N n) { return both(n, [](auto a, auto b) { return a - b; }); }},
    {"_operator.mul", 2, [](N n) { return both(n, [](auto a, auto b) { return a * b; }); }},
    {"_operator.truediv", 2,
     [](N n) -> Scalar {
       check_divisor(n[1].toDouble());
       return n[0].toDouble() / n[1].toDouble();
     }},
    {"_operator.floordiv", 2,
     [](N n) {
       return either(n, floor_divided, [](double a, double b) {
         check_divisor(b);
         return std::floor(a / b);
       });
     }},
    {"_operator.mod", 2,
     [](N n) {
       return either(
           n, [](int64_t a, int64_t b) { return a - floor_divided(a, b) * b; },
           [](double a, double b) {
             check_divisor(b);
             return a - std::floor(a / b) * b;
           });
     }},
    {"_operator.pow", 2, power},
    {"_operator.neg", 1,
     [](N n) { return all_whole(n) ? Scalar(-n[0].toLong()) : Scalar(-n[0].toDouble()); }},
    {"_operator.pos", 1, [](N n) { return n[0]; }},
    {"_operator.eq", 2, [](N n) { return compared(n, [](auto a, auto b) { return a == b; }); }},
    {"_operator.ne", 2, [](N n) { return compared(n, [](auto a, auto b) { return a != b; }); }},
    {"_operator.lt", 2, [](N n) { return compared(n, [](auto a, auto b) { return a < b; }); }},
    {"_operator.le", 2, [](N n) { return compared(n, [](auto a, auto b) { return a <= b; }); }},
    {"_operator.gt", 2, [](N n) { return compared(n, [](auto a, auto b) { return a > b; }); }},
    {"_operator.ge", 2, [](N n) { return compared(n, [](auto a, auto b) { return a >= b; }); }},
    {"_operator.and_", 2, [](N n) { return Scalar(n[0].toBool() && n[1].toBool()); }},
    {"_operator.or_", 2, [](N n) { return Scalar(n[0].toBool() || n[1].toBool()); }},
    {"torch.sym_not", 1, [](N n) { return Scalar(!n[0].toBool()); }},
    {"torch.sym_int", 1,
     [](N n) { return all_whole(n) ? n[0] : Scalar(int64_t(std::trunc(n[0].toDouble()))); }},
    {"math.trunc", 1,
     [](N n) { return all_whole(n) ? n[0] : Scalar(int64_t(std::trunc(n[0].toDouble()))); }},
    {"torch.sym_float", 1, [](N n) { return Scalar(n[0].toDouble()); }},
    {"torch.sym_max", 2,
     [](N n) { return both(n, [](auto a, auto b) { return std::max(a, b); }); }},
    {"torch.sym_min", 2,
     [](N n) { return both(n, [](auto a, auto b) { return std::min(a, b); }); }},
    {"torch.sym_ite", 3, [](N n) { return n[0].toBool() ? n[1] : n[2]; }},
};

class NumberStep final : public Step {
 public:
  NumberStep(std::string name, const NumberOperator& operation,
             std::vector<BoundArgument> arguments, int result, std::string kind)
      : Step(std::move(name)),
        operation_(operation),
        arguments_(std::move(arguments)),
        result_(result),
        kind_(std::move(kind)) {}

  void run(Values& values) const override {
    Numbers numbers;
    numbers.reserve(arguments_.size());
    for (const BoundArgument& argument : arguments_) {
      numbers.push_back(argument.value(values).toScalar());
    }
    const Scalar result = operation_.compute(numbers);
    if (kind_ == "as_sym_int") {
      values[result_] = result.toLong();
    } else if (kind_ == "as_sym_float") {
      values[result_] = result.toDouble();
    } else {
      values[result_] = result.toBool();
    }
  }

  std::vector<int> slots() const override {
    std::vector<int> found = {result_};
    for (const BoundArgument& argument : arguments_) {
      for (const int slot : argument.slots()) found.push_back(slot);
    }
    return found;
  }

 private:
  const NumberOperator& operation_;
  std::vector<BoundArgument> arguments_;
  int result_;
  std::string kind_;
};

/// A tensor's size: of the whole tensor, where this rank has a part of it.
class SizeStep final : public Step {
 public:
  SizeStep(std::string name, int tensor, int64_t dimension, int result)
      : Step(std::move(name)), tensor_(tensor), dimension_(dimension), result_(result) {}

  void run(Values& values) const override {
    values[result_] = values[tensor_].toTensor().size(dimension_);
  }
  std::vector<int> slots() const override { return {tensor_, result_}; }

 private:
  int tensor_;
  int64_t dimension_;
  int result_;
};

/// The slot of a node's only result.
int only_result(const Node& node, Names& names) {
  const auto slots = define_outputs(node, names);
  OSLO_CHECK(slots.size() == 1 && slots[0].size() == 1, node.where, ": it gives one number");
  return slots[0][0];
}

bool gives_number(const Node& node) {
  return node.outputs.size() == 1 && node.outputs[0].choice().first.starts_with("as_sym_");
}

}  // namespace

std::unique_ptr<Step> make_number_step(const Node& node, Names& names) {
  if (node.target == "torch.ops.aten.sym_size.int") {
    OSLO_CHECK(gives_number(node), node.where, ": its result is a number");
    const Document *self = node.argument("self"), *dimension = node.argument("dim");
    OSLO_CHECK(self != nullptr && dimension != nullptr, node.where,
               ": it takes the arguments self and dim");
    const auto [tensor_kind, tensor] = self->choice();
    const auto [dimension_kind, number] = dimension->choice();
    OSLO_CHECK(tensor_kind == "as_tensor" && dimension_kind == "as_int", node.where,
               ": it takes a tensor and a dimension");
    const int slot = bind_any(*self, names).slots().front();
    const int64_t at = number.integer();
    return std::make_unique<SizeStep>(node.where, slot, at, only_result(node, names));
  }
  for (const NumberOperator& operation : kOperators) {
    if (operation.target != node.target) continue;
    OSLO_CHECK(node.arguments.size() == operation.operands && gives_number(node), node.where,
               ": it takes ", operation.operands, " numbers and gives one");
    std::vector<BoundArgument> arguments;
    for (const auto& [name, written] : node.arguments) {
      const std::string kind = written.choice().first;
      OSLO_CHECK(kind != "as_tensor" && kind != "as_none" && kind != "as_string", written.where(),
                 ": it takes numbers, seen '", kind, "'");
      arguments.push_back(bind_any(written, names));
    }
    const std::string kind = node.outputs[0].choice().first;
    const int result = only_result(node, names);
    return std::make_unique<NumberStep>(node.where, operation, std::move(arguments), result, kind);
  }
  return nullptr;
}

}  // namespace oslo::exported
