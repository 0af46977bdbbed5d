#include "oslo_cpp/exported/module/module_uses.h"

#include <algorithm>

#include "oslo_cpp/exported/file/node.h"

namespace oslo::exported {
namespace {

/// What a layer's forward ends in.
bool is_layer_operator(const std::string& target) {
  constexpr std::string_view kTargets[] = {
      "torch.ops.aten.linear.",     "torch.ops.aten.embedding.",  "torch.ops.aten.conv1d.",
      "torch.ops.aten.conv2d.",     "torch.ops.aten.conv3d.",     "torch.ops.aten.layer_norm.",
      "torch.ops.aten.group_norm.", "torch.ops.aten.batch_norm.",
  };
  return std::any_of(std::begin(kTargets), std::end(kTargets),
                     [&](std::string_view layer) { return target.starts_with(layer); });
}

/// Remembers the class of each module around a node: "key,path,class;key,path,class".
void read_classes(const std::string& stack, ModuleUses& uses) {
  for (size_t begin = 0; begin < stack.size();) {
    const size_t end = std::min(stack.find(';', begin), stack.size());
    const std::string entry = stack.substr(begin, end - begin);
    const size_t first = entry.find(','), last = entry.rfind(',');
    begin = end + 1;
    if (first == last) continue;
    const std::string path = entry.substr(first + 1, last - first - 1);
    uses[path.substr(0, path.find('@'))].class_name = entry.substr(last + 1);
  }
}

class Reader {
 public:
  explicit Reader(const std::map<std::string, std::string>& weights) : weights_(weights) {}

  void read(const Document& graph) {
    for (const Document& item : graph.member("nodes").items()) {
      const Node node(item);
      if (const auto stack = item.member("metadata").find("nn_module_stack")) {
        read_classes(stack->text(), uses);
      }
      if (is_layer_operator(node.target)) note(node, item);
      for (const auto& [name, argument] : node.arguments) {
        const auto [kind, value] = argument.choice();
        if (kind == "as_graph") read(value.member("graph"));
      }
    }
  }

  ModuleUses uses;

 private:
  void note(const Node& node, const Document& item) {
    auto& own = uses[node.module_path].operation;
    if (!own) own = item;
    const Document* weight = node.argument("weight");
    if (weight == nullptr) return;
    const auto [kind, value] = weight->choice();
    if (kind != "as_tensor") return;
    const auto path = weights_.find(value.member("name").text());
    if (path == weights_.end() || path->second == node.module_path) return;
    auto& other = uses[path->second].operation;
    if (!other) other = item;
  }

  const std::map<std::string, std::string>& weights_;
};

}  // namespace

ModuleUses read_module_uses(const Document& graph,
                            const std::map<std::string, std::string>& weights) {
  Reader reader(weights);
  reader.read(graph);
  return std::move(reader.uses);
}

}  // namespace oslo::exported
