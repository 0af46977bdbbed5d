#pragma once

#include <memory>

#include "oslo_cpp/exported/file/names.h"
#include "oslo_cpp/exported/file/node.h"
#include "oslo_cpp/exported/graph/graph.h"
#include "oslo_cpp/exported/graph/graph_context.h"

namespace oslo::exported {

// The kinds of steps, a file each. All throw `Error`, led by the node, for what does not
// type-check.

/// The step of a node whose target is an operator of the dispatcher:
/// "torch.ops.aten.linear.default".
std::unique_ptr<Step> make_operator_step(const Node& node, Names& names,
                                         const GraphContext& context);

/// The step of a node that computes with sizes, or null where the target is no such operator:
/// "_operator.floordiv", "torch.sym_max", "torch.ops.aten.sym_size.int".
std::unique_ptr<Step> make_number_step(const Node& node, Names& names);

/// The step of "torch.ops.aten._assert_tensor_metadata.default", which torch.export puts where
/// Python converts a tensor: whether the elements are of the type that the program was made for.
std::unique_ptr<Step> make_type_check_step(const Node& node, Names& names);

/// The step of an operator around a graph: wrap_with_set_grad_enabled (torch.no_grad() in a
/// forward) and wrap_with_autocast. Throws `Error` for all others.
std::unique_ptr<Step> make_scope_step(const Node& node, Names& names, const GraphContext& context);

}  // namespace oslo::exported
