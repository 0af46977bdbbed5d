#pragma once

#include <memory>

#include "oslo_cpp/exported/file/document.h"
#include "oslo_cpp/exported/graph/graph.h"
#include "oslo_cpp/exported/graph/graph_context.h"

namespace oslo::exported {

/// The graph that `written` says (schema.py's Graph), with its operators looked up and its
/// arguments checked. Throws `Error`, naming the node, for an operator that this program does not
/// have, arguments or results that do not go with its schema, values that nothing defines before,
/// and what is not supported.
std::shared_ptr<const Graph> build_graph(const Document& written, const GraphContext& context);

}  // namespace oslo::exported
