#include "parallelizers/placement/engine/register_rule.h"

#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>

#include <vector>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/operators/map_text.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/operators/user_rule_registry.h"

namespace oslo {
namespace {

c10::OperatorName parsed(const std::string& name) {
  const size_t dot = name.find('.');
  return {name.substr(0, dot), dot == std::string::npos ? "" : name.substr(dot + 1)};
}

/// What stands beside a name that nobody defined.
std::string defined_beside(const c10::OperatorName& wanted) {
  const std::string space = wanted.name.substr(0, wanted.name.find("::") + 2);
  std::string overloads, others;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name == wanted.name) overloads += " " + c10::toString(name);
    if (space != "aten::" && name.name.starts_with(space)) others += " " + c10::toString(name);
  }
  if (!overloads.empty()) return "; defined with that name:" + overloads;
  if (!others.empty()) return "; defined in that library:" + others;
  return "; no operator of that library is defined: load it, or register the rule after its "
         "TORCH_LIBRARY";
}

c10::OperatorHandle defined(const std::string& name) {
  const auto handle = c10::Dispatcher::singleton().findSchema(parsed(name));
  if (!handle) {
    fail("register_rule(\"", name, "\"): there is no such operator", defined_beside(parsed(name)));
  }
  return *handle;
}

bool is_tensor(const c10::Type& type) {
  if (const auto* optional = type.castRaw<c10::OptionalType>()) {
    return is_tensor(*optional->getElementType());
  }
  return type.kind() == c10::TypeKind::TensorType;
}

bool has_tensors(const c10::Type& type) {
  if (const auto* optional = type.castRaw<c10::OptionalType>()) {
    return has_tensors(*optional->getElementType());
  }
  if (const auto* list = type.castRaw<c10::ListType>()) return is_tensor(*list->getElementType());
  return is_tensor(type);
}

/// The arguments of a map's operands, in order.
std::vector<size_t> tensor_arguments(const c10::FunctionSchema& schema) {
  std::vector<size_t> found;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (has_tensors(*schema.arguments()[i].type())) found.push_back(i);
  }
  return found;
}

/// Throws unless a map can say what the operator does, and this one speaks of its tensors.
void check_fits(const OperatorEntry& op, const MapText& map) {
  const auto refuse = [&](const auto&... why) {
    fail("register_rule(\"", op.name, "\", \"", map.text(), "\"): ", why...);
  };
  constexpr const char* kFunction = "; register a function on oslo::Call";
  if (op.in_place || op.writes_out) refuse("the operator writes to an argument", kFunction);
  if (op.view) refuse("its result shares the memory of its first argument", kFunction);
  if (op.random) refuse("it draws random numbers, others for a part than for the whole", kFunction);
  const size_t tensors = tensor_arguments(*op.schema).size(), results = op.schema->returns().size();
  if (map.operands() != tensors) {
    refuse("the map has ", map.operands(), " operands, the operator ", tensors, " (", *op.schema,
           "); write the letters of each, separated by commas");
  }
  for (const c10::Argument& result : op.schema->returns()) {
    if (!has_tensors(*result.type()) || result.type()->kind() == c10::TypeKind::OptionalType) {
      refuse("it returns ", result.type()->str(), ", of which a map says nothing", kFunction);
    }
  }
  if (map.results() != results) {
    refuse("the map has ", map.results(), " results, the operator ", results, " (", *op.schema,
           "); write the letters of each, separated by commas");
  }
}

void run_map(Call& call, const MapText& text) {
  std::vector<size_t> terms;
  size_t term = 0;
  for (const size_t argument : tensor_arguments(*call.op().schema)) {
    for_each_tensor_in(call.argument(argument), [&](const at::Tensor&) { terms.push_back(term); });
    ++term;
  }
  call.run(text.of(call.operands(), terms));
}

/// As the rule of an entry.
void run_user_rule(Call& call) {
  try {
    call.op().user_rule->function(call);
  } catch (const ShapeMismatch& error) {
    // The operator may have no kernel that would say it in its own words.
    fail(call.name(), ", by its registered rule: ", error.what());
  }
}

/// The operator as the door would see it; not the entry that it keeps.
OperatorEntry checked(const std::string& name) {
  const RuleTable& table = RuleTable::instance();
  OperatorEntry op(defined(name));
  OSLO_CHECK(table.find(op.name) == nullptr, "register_rule(\"", name,
             "\"): the library has a rule for it already");
  OSLO_CHECK(!op.pointwise, "register_rule(\"", name,
             "\"): it is pointwise, by its tag or by the library's table, and follows the cut "
             "without a rule");
  return op;
}

}  // namespace

void register_rule(const std::string& name, const std::string& map, const std::string& whole) {
  const OperatorEntry op = checked(name);
  const MapText text(map, whole);
  check_fits(op, text);
  add_user_rule(op.name, {[text](Call& call) { run_map(call, text); }, run_user_rule,
                          c10::str("\"", map, "\"",
                                   whole.empty() ? "" : c10::str(", whole \"", whole, "\""))});
}

void register_rule(const std::string& name, std::function<void(Call&)> rule) {
  const OperatorEntry op = checked(name);
  OSLO_CHECK(rule, "register_rule(\"", name, "\"): the function is empty");
  add_user_rule(op.name, {std::move(rule), run_user_rule, "a function"});
}

}  // namespace oslo
