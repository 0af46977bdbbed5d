#include "oslo_cpp/exported/graph/build_graph.h"

#include "mpu/base/error.h"
#include "oslo_cpp/exported/graph/steps.h"

namespace oslo::exported {
namespace {

/// The slot of an input; -1 of one that is a constant, which the nodes have themselves.
int define_input(const Document& written, Names& names) {
  const auto [kind, value] = written.choice();
  const std::string& where = written.where();
  if (kind == "as_tensor") {
    return names.define(value.member("name").text(), ValueKind::tensor, where);
  }
  const auto number = [&, &value = value](ValueKind number_kind) {
    const auto name = value.find("as_name");
    return name ? names.define(name->text(), number_kind, where) : -1;
  };
  if (kind == "as_sym_int") return number(ValueKind::integer);
  if (kind == "as_sym_float") return number(ValueKind::real);
  if (kind == "as_sym_bool") return number(ValueKind::truth);
  const bool constant = kind == "as_none" || kind == "as_int" || kind == "as_float" ||
                        kind == "as_bool" || kind == "as_string";
  OSLO_CHECK(constant, where, ": inputs of the kind '", kind, "' are not supported");
  return -1;
}

std::unique_ptr<Step> make_step(const Node& node, Names& names, const GraphContext& context) {
  if (auto step = make_number_step(node, names)) return step;
  if (node.target == "torch.ops.aten._assert_tensor_metadata.default") {
    return make_type_check_step(node, names);
  }
  if (node.target.starts_with("torch.ops.higher_order.")) {
    return make_scope_step(node, names, context);
  }
  return make_operator_step(node, names, context);
}

}  // namespace

std::shared_ptr<const Graph> build_graph(const Document& written, const GraphContext& context) {
  Names names;
  std::vector<int> inputs;
  for (const Document& input : written.member("inputs").items()) {
    inputs.push_back(define_input(input, names));
  }
  std::vector<std::unique_ptr<Step>> steps;
  for (const Document& item : written.member("nodes").items()) {
    steps.push_back(make_step(Node(item.at(written.where())), names, context));
  }
  std::vector<BoundArgument> outputs;
  for (const Document& output : written.member("outputs").items()) {
    outputs.push_back(bind_any(output, names));
  }
  return std::make_shared<const Graph>(names.slots(), std::move(inputs), std::move(steps),
                                       std::move(outputs));
}

}  // namespace oslo::exported
