#pragma once

#include <map>
#include <optional>
#include <string>

#include "oslo_cpp/exported/file/document.h"

namespace oslo::exported {

/// What a graph shows of a Python module.
struct ModuleUse {
  std::string class_name;  ///< "torch.nn.modules.linear.Linear"; empty where it was not called
  /// The node that multiplies with its weight (schema.py's Node), as far as it is one of a layer.
  std::optional<Document> operation;
};

using ModuleUses = std::map<std::string, ModuleUse>;  ///< by path

/// Reads the modules' classes from where each node came from, and finds the operators of layers.
/// `weights`: the paths of modules by the names that their weights have in the graph. They are
/// asked for modules whose weight is used without a call (`MultiheadAttention`'s out_proj).
ModuleUses read_module_uses(const Document& graph,
                            const std::map<std::string, std::string>& weights);

}  // namespace oslo::exported
