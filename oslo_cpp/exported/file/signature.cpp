#include "oslo_cpp/exported/file/signature.h"

#include <nlohmann/json.hpp>

#include "checkpoint/formats/json/bounded_json.h"
#include "mpu/base/error.h"

namespace oslo::exported {
namespace {

Signature::Input read_input(const Document& written) {
  using Kind = Signature::Kind;
  const auto [kind, value] = written.choice();
  const auto named = [&, &value = value](Kind input_kind, const char* key) {
    return Signature::Input{input_kind, value.member("arg").member("name").text(),
                            value.member(key).text()};
  };
  if (kind == "parameter") return named(Kind::parameter, "parameter_name");
  if (kind == "buffer") {
    Signature::Input buffer = named(Kind::buffer, "buffer_name");
    buffer.saved = value.member("persistent").truth();
    return buffer;
  }
  if (kind == "tensor_constant") return named(Kind::constant, "tensor_constant_name");
  if (kind == "constant_input") return {Kind::fixed, value.member("name").text(), ""};
  OSLO_CHECK_AS(file, kind == "user_input", value.where(), ": inputs of the kind '", kind,
                "' are not supported; keep custom objects and tokens out of the exported module");
  const auto [argument, name] = value.member("arg").choice();
  if (argument == "as_tensor") return {Kind::user, name.member("name").text(), ""};
  if (argument.starts_with("as_sym_")) {
    const auto symbol = name.find("as_name");
    if (symbol) return {Kind::user, symbol->text(), ""};
  }
  return {Kind::fixed, "", ""};
}

/// Adds a name for each leaf of a tree (PyTorch's pytree), which is
/// no deeper than its text was allowed to be.
void add_leaves(const nlohmann::json& tree, const std::string& prefix,
                std::vector<std::string>& names) {
  const auto& type = tree.at("type");
  const auto& children = tree.at("children_spec");
  if (type.is_null()) {
    names.push_back(prefix.empty() ? "output" : prefix);
    return;
  }
  // The keys of a dictionary; null or something else of other containers.
  nlohmann::json keys;
  const auto& context = tree.at("context");
  if (context.is_string() && context.get_ref<const std::string&>().starts_with("[")) {
    keys = read_json(context.get_ref<const std::string&>(), JsonLimits{.depth = 4});
  }
  const bool named = keys.is_array() && keys.size() == children.size();
  for (size_t i = 0; i < children.size(); ++i) {
    const bool text = named && keys[i].is_string();
    const std::string name = text ? keys[i].get<std::string>() : std::to_string(i);
    add_leaves(children[i], prefix.empty() ? name : prefix + "." + name, names);
  }
}

}  // namespace

Signature read_signature(const Document& written) {
  Signature signature;
  for (const Document& input : written.member("input_specs").items()) {
    signature.inputs.push_back(read_input(input));
    Signature::Input& added = signature.inputs.back();
    if (added.kind == Signature::Kind::user) added.name = added.value;
  }
  for (const Document& output : written.member("output_specs").items()) {
    const auto [kind, value] = output.choice();
    OSLO_CHECK_AS(file, kind == "user_output", output.where(), ": results of the kind '", kind,
                  "' are not those of a program in training form; save what torch.export.export "
                  "gave, before run_decompositions");
  }
  return signature;
}

std::vector<std::string> output_names(const Document& graph_module, size_t count) {
  std::vector<std::string> names;
  try {
    for (const Document& entry : graph_module.member("module_call_graph").items()) {
      if (!entry.member("fqn").text().empty()) continue;
      const auto tree =
          read_json(entry.member("signature").member("out_spec").text(), JsonLimits{.depth = 64});
      add_leaves(tree.at(1), "", names);
      break;
    }
  } catch (const Error&) {  // a container that PyTorch writes in another way
    names.clear();
  } catch (const nlohmann::json::exception&) {
    names.clear();
  }
  if (names.size() == count) return names;
  names.clear();
  for (size_t i = 0; i < count; ++i) names.push_back(std::to_string(i));
  return names;
}

}  // namespace oslo::exported
