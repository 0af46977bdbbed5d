#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>

namespace oslo {

class Call;

/// What an operator does with the placed values it is called on.
using Rule = void (*)(Call&);

/// All the door knows of one operator, made on its first call and kept: the hot path compares no
/// strings.
struct OperatorEntry {
  explicit OperatorEntry(const c10::OperatorHandle& handle);

  c10::OperatorHandle handle;
  const c10::FunctionSchema* schema;
  std::string name;         ///< "aten::add.Tensor"
  Rule rule = nullptr;      ///< from the rule table
  bool pointwise = false;   ///< element by element, operands aligned from the right
  bool in_place = false;    ///< writes its first argument and returns it
  bool writes_out = false;  ///< out= variant
  bool view = false;        ///< the result aliases the first argument
  bool composite = false;   ///< made of other operators
  bool on_each = false;     ///< of lists: one operator on each of their tensors
  bool random = false;      ///< draws random numbers
  size_t arguments = 0;
};

/// The entry of an operator. Entries live as long as the program.
const OperatorEntry& entry_of(const c10::OperatorHandle& handle);

}  // namespace oslo
