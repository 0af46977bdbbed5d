#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <string>

#include "parallelizers/placement/layout/weight_uses.h"
#include "parallelizers/placement/operators/rule.h"

namespace oslo {

struct UserRule;

/// All the door knows of one operator, made on its first call and kept: the hot path compares no
/// strings.
struct OperatorEntry {
  explicit OperatorEntry(const c10::OperatorHandle& handle);

  c10::OperatorHandle handle;
  const c10::FunctionSchema* schema;
  std::string name;         ///< "aten::add.Tensor"
  Rule rule = nullptr;      ///< from the rule table, or what runs `user_rule`
  bool pointwise = false;   ///< element by element, operands aligned from the right
  bool in_place = false;    ///< writes its first argument and returns it
  bool writes_out = false;  ///< out= variant
  bool view = false;        ///< the result aliases the first argument
  bool composite = false;   ///< made of other operators
  bool on_each = false;     ///< of lists: one operator on each of their tensors
  bool adds = false;        ///< takes partial sums as they are (engine/joined_sum.h)
  bool random = false;      ///< draws random numbers
  bool gelu = false;        ///< a product may have computed it already (kernel_fusion.h)
  bool autocasts = false;   ///< LibTorch's autocast has a kernel for it, on some device
  bool to_type = false;     ///< what autocast casts an operand by

  // On marked tensors (door/part_operators.h).
  bool keeps_mark = false;        ///< the result is a part of what the first argument is one of
  bool metadata = false;          ///< of one tensor: changes or reads its place in the graph only
  bool changes_data = false;      ///< gives a tensor the data of another
  bool uninitialized = false;     ///< the result has no content yet
  bool shape_alone = false;       ///< the result has the first argument's sizes, not its content
  bool clears = false;            ///< fills with zeros, in place
  bool writes_pointwise = false;  ///< in place or out=, element by element
  bool only_pointwise = false;    ///< gives one new tensor, or writes its first argument
  bool on_parts = false;          ///< may act on this rank's part alone: one of the above
  bool between_ranks = false;     ///< a process group's own collective

  // Of weights that a plan speaks of (layout/weight_uses.h).
  bool same_weight = false;     ///< what comes of a weight is that weight still
  UseKind use = UseKind::none;  ///< of a weight among the arguments

  size_t arguments = 0;
  std::shared_ptr<const UserRule> user_rule = nullptr;  ///< what the program registered
};

/// Whether LibTorch itself defines the operator, not a program or a library beside it.
bool is_of_libtorch(const OperatorEntry& op);

/// The entry of an operator. Entries live as long as the program.
const OperatorEntry& entry_of(const c10::OperatorHandle& handle);

}  // namespace oslo
