#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <utility>
#include <vector>

#include "oslo_cpp/exported/file/document.h"
#include "oslo_cpp/exported/file/names.h"

namespace oslo::exported {

/// An argument of a node, checked against the operator's schema when the graph is read: a constant,
/// a value, or a list of both.
class BoundArgument {
 public:
  /// How the argument is made of its parts.
  enum class Form {
    constant,          ///< it is known
    value,             ///< the value of a slot
    real_number,       ///< a slot's number, for an operator that takes a real one
    wrapped_number,    ///< a slot's number, for an operator that takes a tensor
    integers,          ///< a list of numbers
    reals,             ///< the same
    truths,            ///< the same
    tensors,           ///< a list of tensors
    optional_tensors,  ///< one in which tensors may be missing
  };
  struct Part {
    int slot = -1;  ///< where the value is; -1: it is `constant`
    c10::IValue constant = {};
  };

  BoundArgument(Form form, std::vector<Part> parts) : form_(form), parts_(std::move(parts)) {}
  explicit BoundArgument(c10::IValue constant)
      : form_(Form::constant), parts_{{-1, std::move(constant)}} {}

  c10::IValue value(const Values& values) const;
  /// What it is in every run; null where that is not known.
  const c10::IValue* constant() const;
  /// The slots that it reads.
  std::vector<int> slots() const;

 private:
  Form form_;
  std::vector<Part> parts_;
};

/// The argument that `written` (schema.py's Argument) says, for `parameter` of an operator. Throws
/// `Error` for a name without a value, for what the operator does not take there, and for kinds of
/// arguments that are not supported.
BoundArgument bind_argument(const Document& written, const c10::Argument& parameter,
                            const Names& names);

/// The same where no schema says a type: what a graph returns, and what it hands to one inside it.
BoundArgument bind_any(const Document& written, const Names& names);

}  // namespace oslo::exported
