#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/operator_examples/example.h"

// One operator of an example, called on any tensors; and what it does on one device.
namespace operator_examples {

using Tensors = std::vector<at::Tensor>;
using Stack = std::vector<c10::IValue>;

inline c10::OperatorHandle handle_of(const std::string& name) {
  const size_t dot = name.find('.');
  const std::string overload = dot == std::string::npos ? "" : name.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchemaOrThrow(("aten::" + name.substr(0, dot)).c_str(),
                                                        overload.c_str());
}

/// Calls `visit` on every defined tensor of a stack, in order, to replace it.
template <typename Visit>
void visit_tensors(Stack& stack, const std::vector<std::string>& names, const Visit& visit) {
  for (size_t i = 0; i < stack.size(); ++i) {
    const std::string name = i < names.size() ? names[i] : "";
    const auto part = [&](size_t j) { return name + "[" + std::to_string(j) + "]"; };
    if (stack[i].isTensor()) {
      at::Tensor tensor = stack[i].toTensor();
      if (tensor.defined()) visit(tensor, name);
      stack[i] = tensor;
    } else if (stack[i].isTensorList()) {
      Tensors list = stack[i].toTensorVector();
      for (size_t j = 0; j < list.size(); ++j) visit(list[j], part(j));
      stack[i] = list;
    } else if (stack[i].isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      size_t j = 0;
      for (std::optional<at::Tensor> tensor : stack[i].toOptionalTensorVector()) {
        if (tensor && tensor->defined()) visit(*tensor, part(j));
        list.push_back(tensor);
        ++j;
      }
      stack[i] = list;
    }
  }
}

/// An example of one operator, ready to be called.
struct Prepared {
  const Example* example;
  std::string name;
  c10::OperatorHandle handle;
  bool in_place;
  std::vector<std::string> arguments;
  Stack stack;
  Tensors operands;
  std::vector<std::string> operand_names;

  Prepared(const Example& from, const std::string& operator_name)
      : example(&from),
        name(operator_name),
        handle(handle_of(operator_name)),
        in_place(name.substr(0, name.find('.')).back() == '_') {
    const auto& schema = handle.schema().arguments();
    const auto& names = handle_of(from.operators[0]).schema().arguments();
    for (size_t i = 0; i < schema.size(); ++i) {
      const std::string argument = schema[i].name();
      // Those of one example share the names of its first.
      const std::string shown = i < names.size() ? names[i].name() : argument;
      arguments.push_back(shown == "self" ? "input" : shown);
      const auto given = std::find_if(from.arguments.begin(), from.arguments.end(),
                                      [&](const Argument& a) { return a.name == argument; });
      c10::IValue value;
      if (given != from.arguments.end()) {
        value = given->value;
      } else if (i < from.arguments.size() && from.arguments[i].name.empty()) {
        value = from.arguments[i].value;
      } else if (schema[i].default_value()) {
        value = *schema[i].default_value();
      }
      stack.push_back(std::move(value));
    }
    find_operands();
  }

  /// Without the optional tensors (weight and bias of a norm, a mask).
  Prepared bare() const {
    Prepared other = *this;
    const auto& schema = handle.schema().arguments();
    for (size_t i = 0; i < schema.size(); ++i) {
      if (*schema[i].type() == *c10::OptionalType::create(c10::TensorType::get())) {
        other.stack[i] = c10::IValue();
      }
    }
    other.find_operands();
    return other;
  }

  /// With one operand whose gradient is recorded.
  Prepared recording(size_t operand) const {
    Prepared other = *this;
    for (size_t i = 0; i < other.operands.size(); ++i) {
      other.operands[i] =
          operands[i].detach().set_requires_grad(i == operand && operands[i].requires_grad());
    }
    return other;
  }

  Stack call(const Tensors& with) const {
    Stack arguments = stack;
    size_t next = 0;
    visit_tensors(arguments, {},
                  [&](at::Tensor& tensor, const std::string&) { tensor = with[next++]; });
    handle.callBoxed(&arguments);
    return arguments;
  }

 private:
  void find_operands() {
    operands.clear();
    operand_names.clear();
    visit_tensors(stack, arguments, [&](at::Tensor& tensor, const std::string& of) {
      operands.push_back(tensor);
      operand_names.push_back(of);
    });
  }
};

inline Tensors tensors_of(Stack results) {
  Tensors tensors;
  visit_tensors(results, {}, [&](at::Tensor& t, const std::string&) { tensors.push_back(t); });
  return tensors;
}

/// Something to go backward from, the same on every rank.
inline at::Tensor upstream_of(const at::Tensor& result) {
  const at::Tensor numbers = at::arange(result.numel(), at::kDouble).view(result.sizes());
  return (at::sin(numbers * 1.7 + 0.3) + 0.2).to(result.scalar_type());
}

/// Goes backward from the results that record; false when none does.
inline bool go_backward(const Tensors& results) {
  Tensors from, gradients;
  for (const at::Tensor& result : results) {
    if (!result.requires_grad()) continue;
    from.push_back(result);
    gradients.push_back(upstream_of(result));
  }
  if (!from.empty()) torch::autograd::backward(from, gradients);
  return !from.empty();
}

struct Expected {
  Tensors results, operands, gradients;
  std::string plain;  ///< results that are no tensors
  bool backward = false;
  Tensors second;  ///< second_gradients; empty where the operator has none
};

/// Of results that were computed from these leaves: the gradients of what `go_backward` gives them,
/// with a graph of their own. Those that do not lead to a leaf are undefined; empty: none does.
inline Tensors second_gradients(const Tensors& results, const Tensors& leaves) {
  const auto gradients_of = [&](const Tensors& of, const Tensors& from, bool again) {
    Tensors outputs, upstream;
    for (const at::Tensor& tensor : of) {
      if (!tensor.defined() || !tensor.requires_grad()) continue;
      outputs.push_back(tensor);
      upstream.push_back(upstream_of(tensor));
    }
    if (outputs.empty()) return Tensors();
    return torch::autograd::grad(outputs, from, upstream, /*retain_graph=*/true,
                                 /*create_graph=*/again, /*allow_unused=*/true);
  };
  Tensors recorded;
  for (const at::Tensor& leaf : leaves) {
    if (leaf.requires_grad()) recorded.push_back(leaf);
  }
  if (recorded.empty()) return {};
  return gradients_of(gradients_of(results, recorded, true), recorded, false);
}

/// The operands as leaves, and as they are given to the operator: what is written is a copy.
inline Tensors given(const Prepared& op, const Tensors& leaves) {
  Tensors operands = leaves;
  const bool recorded = std::any_of(leaves.begin(), leaves.end(),
                                    [](const at::Tensor& leaf) { return leaf.requires_grad(); });
  if (op.in_place && recorded) operands[0] = operands[0].clone();
  return operands;
}

inline std::string plain_text(const Stack& results) {
  std::string text;
  for (const c10::IValue& result : results) {
    if (result.isBool()) text += result.toBool() ? "true " : "false ";
  }
  return text;
}

inline Expected on_one_device(const Prepared& op) {
  Tensors leaves;
  for (const at::Tensor& operand : op.operands) {
    leaves.push_back(operand.detach().clone().set_requires_grad(operand.requires_grad()));
  }
  const Tensors operands = given(op, leaves);
  const Stack returned = op.call(operands);
  Expected expected{tensors_of(returned), {}, {}, plain_text(returned), false, {}};
  try {
    expected.backward = go_backward(expected.results);
  } catch (const std::exception&) {  // not differentiable
  }
  for (at::Tensor& result : expected.results) result = result.detach();
  for (const at::Tensor& operand : operands) expected.operands.push_back(operand.detach());
  for (const at::Tensor& leaf : leaves) expected.gradients.push_back(leaf.grad());
  return expected;
}

/// The same with the second derivatives, where it has them.
inline Expected twice_on_one_device(const Prepared& op) {
  Expected expected = on_one_device(op);
  if (!expected.backward) return expected;
  Tensors leaves;
  for (const at::Tensor& operand : op.operands) {
    leaves.push_back(operand.detach().clone().set_requires_grad(operand.requires_grad()));
  }
  try {
    expected.second = second_gradients(tensors_of(op.call(given(op, leaves))), leaves);
  } catch (const std::exception&) {  // once only
  }
  return expected;
}

}  // namespace operator_examples
