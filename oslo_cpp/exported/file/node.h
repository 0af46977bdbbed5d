#pragma once

#include <string>
#include <utility>
#include <vector>

#include "oslo_cpp/exported/file/document.h"
#include "oslo_cpp/exported/file/names.h"

namespace oslo::exported {

/// A node as the file says it (schema.py's Node).
struct Node {
  explicit Node(const Document& written);

  std::string target;       ///< "torch.ops.aten.linear.default"
  std::string where;        ///< leads messages: the file, the node's name and its target
  std::string module_path;  ///< of the innermost Python module that it came of: "h.0.attn"
  std::vector<std::pair<std::string, Document>> arguments;  ///< by the names of the parameters
  std::vector<Document> outputs;

  /// The argument of that name, or nothing.
  const Document* argument(const std::string& name) const;
};

/// The slots of a node's results, defined in `names`: one for each result, several for a list.
std::vector<std::vector<int>> define_outputs(const Node& node, Names& names);

}  // namespace oslo::exported
