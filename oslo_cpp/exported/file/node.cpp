#include "oslo_cpp/exported/file/node.h"

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo::exported {
namespace {

/// "h.0.attn" of "L__self__,,Net;L__self___h_0,h.0,Block;L__self___h_0_attn,h.0.attn,Attention". A
/// module that is called several times has "@1" and so on behind its path.
std::string innermost_path(const std::string& stack) {
  const size_t last = stack.rfind(';');
  const std::string entry = last == std::string::npos ? stack : stack.substr(last + 1);
  const size_t begin = entry.find(','), end = entry.rfind(',');
  if (begin == end) return {};
  const std::string path = entry.substr(begin + 1, end - begin - 1);
  return path.substr(0, path.find('@'));
}

}  // namespace

Node::Node(const Document& written) : target(written.member("target").text()) {
  const auto name = written.find("name");
  where = c10::str(written.where(), ": node ", name ? printable(name->text()) + " " : "", "(",
                   printable(target), ")");
  for (const Document& input : written.member("inputs").items()) {
    const std::string& parameter = input.member("name").text();
    const std::string argument =
        parameter.empty() ? where : where + ", argument " + printable(parameter);
    arguments.emplace_back(parameter, input.member("arg").at(argument));
  }
  for (const Document& output : written.member("outputs").items()) {
    outputs.push_back(output.at(where));
  }
  if (const auto stack = written.member("metadata").find("nn_module_stack")) {
    module_path = innermost_path(stack->text());
  }
}

const Document* Node::argument(const std::string& name) const {
  for (const auto& [parameter, written] : arguments) {
    if (parameter == name) return &written;
  }
  return nullptr;
}

std::vector<std::vector<int>> define_outputs(const Node& node, Names& names) {
  const auto tensor = [&](const Document& written) {
    return names.define(written.member("name").text(), ValueKind::tensor, node.where);
  };
  const auto number = [&](const Document& written, ValueKind kind) {
    return names.define(written.member("as_name").text(), kind, node.where);
  };
  std::vector<std::vector<int>> slots;
  for (const Document& output : node.outputs) {
    const auto [kind, value] = output.choice();
    if (kind == "as_tensor") {
      slots.push_back({tensor(value)});
    } else if (kind == "as_none") {
      slots.emplace_back();
    } else if (kind == "as_tensors") {
      slots.emplace_back();
      for (const Document& item : value.items()) slots.back().push_back(tensor(item));
    } else if (kind == "as_sym_int") {
      slots.push_back({number(value, ValueKind::integer)});
    } else if (kind == "as_sym_float") {
      slots.push_back({number(value, ValueKind::real)});
    } else if (kind == "as_sym_bool") {
      slots.push_back({number(value, ValueKind::truth)});
    } else {
      fail_as(ErrorKind::file, node.where, ": results of the kind '", kind, "' are not supported");
    }
  }
  return slots;
}

}  // namespace oslo::exported
