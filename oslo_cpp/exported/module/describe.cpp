#include "oslo_cpp/exported/module/describe.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "checkpoint/storage/outside_text.h"
#include "oslo_cpp/exported/file/archive.h"
#include "oslo_cpp/exported/file/signature.h"
#include "oslo_cpp/exported/module/input_check.h"
#include "oslo_cpp/exported/module/module_builder.h"
#include "oslo_cpp/exported/module/module_uses.h"

namespace oslo::exported {
namespace {

/// Rows of two columns, the first as wide as its longest word.
std::string rows(const std::vector<std::pair<std::string, std::string>>& lines) {
  size_t width = 0;
  for (const auto& [first, second] : lines) width = std::max(width, first.size());
  std::string text;
  for (const auto& [first, second] : lines) {
    text += "  " + first;
    if (!second.empty()) text += std::string(width - first.size() + 2, ' ') + second;
    text += "\n";
  }
  return text;
}

/// Calls of each operator, those of inner graphs, too.
void count_operators(const Document& graph, std::map<std::string, int>& counts) {
  constexpr std::string_view kPrefix = "torch.ops.";
  for (const Document& node : graph.member("nodes").items()) {
    const std::string& target = node.member("target").text();
    ++counts[printable(target.starts_with(kPrefix) ? target.substr(kPrefix.size()) : target)];
    for (const Document& input : node.member("inputs").items()) {
      const auto [kind, value] = input.member("arg").choice();
      if (kind == "as_graph") count_operators(value.member("graph"), counts);
    }
  }
}

std::string modules_text(const Archive& archive, const Document& graph_module,
                         const Signature& signature) {
  std::map<std::string, std::string> tensors;
  for (const Signature::Input& input : signature.inputs) {
    const bool parameter = input.kind == Signature::Kind::parameter;
    if (!parameter && input.kind != Signature::Kind::buffer) continue;
    const auto [path, leaf] = split_name(input.name);
    std::string& text = tensors[path];
    text += c10::str(text.empty() ? "" : ", ", parameter ? "" : "buffer ", printable(leaf), " ",
                     c10::IntArrayRef(archive.sizes(input.name)));
  }
  const ModuleUses uses = read_module_uses(graph_module.member("graph"), {});
  std::vector<std::pair<std::string, std::string>> lines;
  for (const Document& entry : graph_module.member("module_call_graph").items()) {
    const std::string& path = entry.member("fqn").text();
    const auto use = uses.find(path);
    const std::string name =
        short_class_name(use == uses.end() ? std::string() : use->second.class_name);
    const std::string& held = tensors[path];
    lines.emplace_back(path.empty() ? "(root)" : printable(path),
                       printable(name) + (held.empty() ? "" : ": " + held));
  }
  return rows(lines);
}

std::string describe(const Archive& archive) {
  const Document program = archive.program();
  const Document graph_module = program.member("graph_module").at(archive.file());
  const Document graph = graph_module.member("graph").at(archive.file());
  const Document schema = program.member("schema_version");
  const Signature signature = read_signature(graph_module.member("signature"));
  std::string text = c10::str(
      archive.file(), ": by PyTorch ", printable(program.member("torch_version").text()),
      ", schema ", schema.member("major").integer(), ".", schema.member("minor").integer(), "\n");

  std::vector<std::string> names;
  for (const Signature::Input& input : signature.inputs) {
    if (input.kind == Signature::Kind::user) names.push_back(input.name);
  }
  text +=
      "inputs\n" + rows(InputCheck(graph, program.find("range_constraints"), names).descriptions());
  text += "results\n";
  for (const std::string& name :
       output_names(graph_module, graph.member("outputs").items().size())) {
    text += "  " + printable(name) + "\n";
  }
  text += "modules\n" + modules_text(archive, graph_module, signature);

  std::map<std::string, int> counts;
  count_operators(graph, counts);
  std::vector<std::pair<std::string, std::string>> lines;
  for (const auto& [name, count] : counts) lines.emplace_back(name, std::to_string(count));
  return text + "operators\n" + rows(lines);
}

}  // namespace
}  // namespace oslo::exported

std::string oslo::describe_exported(const std::filesystem::path& path) {
  return exported::describe(exported::Archive(path));
}
