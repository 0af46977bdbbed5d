// A node that calls an operator of LibTorch's dispatcher.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <optional>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"
#include "oslo_cpp/exported/graph/steps.h"
#include "oslo_cpp/exported/graph/training_flag.h"

namespace oslo::exported {
namespace {

/// What an argument is in evaluation, where that is another value than in training.
struct EvaluationValue {
  const torch::nn::Module* module;  ///< whose training flag decides
  size_t argument;
  c10::IValue value;
};

class OperatorStep final : public Step {
 public:
  OperatorStep(std::string name, c10::OperatorHandle operation,
               std::vector<BoundArgument> arguments, std::vector<std::vector<int>> outputs,
               std::optional<EvaluationValue> evaluation)
      : Step(std::move(name)),
        operation_(std::move(operation)),
        arguments_(std::move(arguments)),
        outputs_(std::move(outputs)),
        evaluation_(std::move(evaluation)) {}

  void run(Values& values) const override {
    std::vector<c10::IValue> stack;
    stack.reserve(std::max(arguments_.size(), outputs_.size()));
    for (const BoundArgument& argument : arguments_) stack.push_back(argument.value(values));
    if (evaluation_ && !evaluation_->module->is_training()) {
      stack[evaluation_->argument] = evaluation_->value;
    }
    operation_.callBoxed(stack);
    for (size_t i = 0; i < outputs_.size(); ++i) store(outputs_[i], std::move(stack[i]), values);
  }

  std::vector<int> slots() const override {
    std::vector<int> found;
    for (const BoundArgument& argument : arguments_) {
      for (const int slot : argument.slots()) found.push_back(slot);
    }
    for (const auto& output : outputs_) found.insert(found.end(), output.begin(), output.end());
    return found;
  }

 private:
  void store(const std::vector<int>& slots, c10::IValue result, Values& values) const {
    if (!result.isTensorList()) {
      if (!slots.empty()) values[slots.front()] = std::move(result);
      return;
    }
    const c10::List<at::Tensor> list = result.toTensorList();
    OSLO_CHECK(list.size() == slots.size(), name(), " gave ", list.size(),
               " tensors, and the program was exported for ", slots.size(),
               ": export it for inputs of these sizes");
    for (size_t i = 0; i < slots.size(); ++i) values[slots[i]] = list.get(i);
  }

  c10::OperatorHandle operation_;
  std::vector<BoundArgument> arguments_;
  std::vector<std::vector<int>> outputs_;
  std::optional<EvaluationValue> evaluation_;
};

/// A node that counts the batches that a norm has seen: it does so in training only.
class CountStep final : public Step {
 public:
  CountStep(std::unique_ptr<Step> step, const torch::nn::Module& module, int counter, int result)
      : Step(step->name()),
        step_(std::move(step)),
        module_(module),
        counter_(counter),
        result_(result) {}

  void run(Values& values) const override {
    if (module_.is_training()) return step_->run(values);
    values[result_] = values[counter_];
  }
  std::vector<int> slots() const override { return step_->slots(); }

 private:
  std::unique_ptr<Step> step_;
  const torch::nn::Module& module_;
  int counter_, result_;
};

/// "torch.ops.aten.max.dim" as the dispatcher names it.
c10::OperatorName operator_name(const Node& node) {
  constexpr std::string_view kPrefix = "torch.ops.";
  const std::string& target = node.target;
  const size_t space = target.find('.', kPrefix.size()), last = target.rfind('.');
  OSLO_CHECK(target.starts_with(kPrefix) && space != std::string::npos && space < last, node.where,
             ": '", printable(target), "' is no operator");
  const std::string overload = target.substr(last + 1);
  return {target.substr(kPrefix.size(), space - kPrefix.size()) +
              "::" + target.substr(space + 1, last - space - 1),
          overload == "default" ? "" : overload};
}

c10::OperatorHandle find_operator(const Node& node) {
  const c10::OperatorName name = operator_name(node);
  // It opens whatever file a graph names, and may write to it.
  OSLO_CHECK(name.name != "aten::from_file", node.where,
             ": a program may not open files; keep that out of the exported module");
  const auto found = c10::Dispatcher::singleton().findSchema(name);
  OSLO_CHECK(found, node.where, ": there is no operator ", printable(c10::toString(name)),
             " in this program; link the library that registers it");
  return *found;
}

std::vector<BoundArgument> bind_arguments(const Node& node, const c10::FunctionSchema& schema,
                                          const Names& names) {
  for (size_t i = 0; i < node.arguments.size(); ++i) {
    const std::string& name = node.arguments[i].first;
    OSLO_CHECK(schema.argumentIndexWithName(name), node.where, ": the operator has no argument '",
               printable(name), "'; it is ", c10::toString(schema));
    OSLO_CHECK(node.argument(name) == &node.arguments[i].second, node.where, ": the argument '",
               printable(name), "' is there twice");
  }
  std::vector<BoundArgument> bound;
  for (const c10::Argument& parameter : schema.arguments()) {
    if (const Document* written = node.argument(parameter.name())) {
      bound.push_back(bind_argument(*written, parameter, names));
      continue;
    }
    OSLO_CHECK(parameter.default_value(), node.where, ": the argument '", parameter.name(),
               "' is missing; it is ", c10::toString(schema));
    bound.emplace_back(*parameter.default_value());
  }
  return bound;
}

bool goes_with(const std::string& kind, const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
    case c10::TypeKind::OptionalType:
      return kind == "as_tensor" || kind == "as_none";
    case c10::TypeKind::ListType:
      return kind == "as_tensors" &&
             type->castRaw<c10::ListType>()->getElementType()->kind() == c10::TypeKind::TensorType;
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
      return kind == "as_sym_int";
    case c10::TypeKind::FloatType:
      return kind == "as_sym_float";
    case c10::TypeKind::BoolType:
      return kind == "as_sym_bool";
    case c10::TypeKind::NumberType:
      return kind.starts_with("as_sym_");
    default:
      return false;
  }
}

void check_outputs(const Node& node, const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  OSLO_CHECK(node.outputs.size() == returns.size(), node.where, ": it has ", node.outputs.size(),
             " results, and the operator gives ", returns.size());
  for (size_t i = 0; i < returns.size(); ++i) {
    const std::string kind = node.outputs[i].choice().first;
    OSLO_CHECK(goes_with(kind, returns[i].type()), node.where, ": result ", i, " is written as '",
               printable(kind), "', and the operator gives a ", returns[i].type()->str());
  }
}

/// Notes a node that does what it does in training whatever its module is in.
void note_draw(const Node& node, const GraphContext& context) {
  if (context.as_written) return;
  const torch::nn::Module& module = context.module_at(node.module_path);
  context.notes->draws.push_back({node.where, node.module_path, &module});
  context.notes->asked.insert(&module);
}

std::optional<EvaluationValue> evaluation_of(const Node& node, const c10::OperatorHandle& operation,
                                             const std::vector<BoundArgument>& arguments,
                                             const GraphContext& context) {
  const c10::FunctionSchema& schema = operation.schema();
  const std::optional<TrainingFlag> flag = training_flag(operation);
  if (!flag) {
    if (may_draw(operation)) note_draw(node, context);
    return std::nullopt;
  }
  const auto constant_of = [&](std::string_view name) -> const c10::IValue* {
    const auto index = schema.argumentIndexWithName(name);
    return index ? arguments[*index].constant() : nullptr;
  };
  const c10::IValue* written = constant_of(flag->argument);
  if (written == nullptr || written->isNone()) {  // computed when the model runs, or not said
    if (may_draw(operation)) note_draw(node, context);
    return std::nullopt;
  }
  if (!flag->needs.empty()) {
    const c10::IValue* needed = constant_of(flag->needs);
    if (needed != nullptr && needed->isNone()) return std::nullopt;
  }
  const bool on = flag->probability ? written->toDouble() > 0 : written->toBool();
  if (!on) {
    context.notes->flags_off += flag->probability ? 0 : 1;
    return std::nullopt;
  }
  ++context.notes->flags_on;
  if (context.as_written) return std::nullopt;
  const torch::nn::Module& module = context.module_at(node.module_path);
  context.notes->asked.insert(&module);
  return EvaluationValue{&module,
                         static_cast<size_t>(*schema.argumentIndexWithName(flag->argument)),
                         flag->probability ? c10::IValue(0.0) : c10::IValue(false)};
}

/// Whether the node is `num_batches_tracked.add_(1)`.
bool counts_batches(const Node& node, const c10::FunctionSchema& schema,
                    const GraphContext& context) {
  if (schema.name() != "aten::add_" || node.outputs.size() != 1) return false;
  const Document* self = node.argument("self");
  if (self == nullptr) return false;
  const auto [kind, value] = self->choice();
  return kind == "as_tensor" && context.counters->count(value.member("name").text()) > 0;
}

}  // namespace

std::unique_ptr<Step> make_operator_step(const Node& node, Names& names,
                                         const GraphContext& context) {
  const c10::OperatorHandle operation = find_operator(node);
  const c10::FunctionSchema& schema = operation.schema();
  std::vector<BoundArgument> arguments = bind_arguments(node, schema, names);
  check_outputs(node, schema);
  auto evaluation = evaluation_of(node, operation, arguments, context);
  const bool counts = counts_batches(node, schema, context);
  const int counter = counts ? arguments.front().slots().front() : -1;
  auto outputs = define_outputs(node, names);
  const int result = counts ? outputs.front().front() : -1;
  auto step = std::make_unique<OperatorStep>(node.where, operation, std::move(arguments),
                                             std::move(outputs), std::move(evaluation));
  if (!counts) return step;
  context.notes->asked.insert(&context.module_at(node.module_path));
  // A norm that is called again counts on what its first call gave.
  context.counters->insert(node.outputs.front().choice().second.member("name").text());
  return std::make_unique<CountStep>(std::move(step), context.module_at(node.module_path), counter,
                                     result);
}

}  // namespace oslo::exported
