#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include <functional>
#include <optional>
#include <vector>

#include "parallelizers/placement/carrier/graph/gathered_view.h"
#include "parallelizers/placement/operators/dimension_map.h"
#include "parallelizers/placement/operators/operator_entry.h"

namespace oslo {

class KernelFusion;

/// One call of an operator on placed values, as a rule sees it: arguments as values, results to
/// hand back. Arguments are read from the stack and stay there until the rule is done.
class Call {
 public:
  Call(const OperatorEntry& op, torch::jit::Stack& stack);

  const OperatorEntry& op() const { return op_; }
  const char* name() const { return op_.name.c_str(); }

  // Arguments by position.
  size_t size() const { return op_.arguments; }
  const c10::IValue& argument(size_t i) const { return stack_[base_ + i]; }
  c10::ArrayRef<c10::IValue> arguments() const {
    // With parentheses: braces would make a list of a pointer and a number.
    return c10::ArrayRef<c10::IValue>(stack_.data() + base_, size());
  }
  int64_t integer(size_t i) const { return argument(i).toInt(); }
  double number(size_t i) const { return argument(i).toScalar().toDouble(); }
  bool boolean(size_t i) const { return argument(i).toBool(); }
  std::vector<int64_t> integers(size_t i) const;
  /// A dimension argument, counted from the front for a tensor of `dims` dimensions.
  int64_t dimension(size_t i, int64_t dims) const;
  /// Dimensions; all of them when the argument is none or empty.
  std::vector<int64_t> dimensions(size_t i, int64_t dims) const;
  bool none(size_t i) const { return i >= size() || argument(i).isNone(); }

  // Tensors by position. An absent optional tensor is an undefined value. Each is unwrapped when it
  // is first asked for, and once: that makes nodes in the graph, and takes a gathered view again.
  bool is_tensor(size_t i) const { return argument(i).isTensor(); }
  Value value(size_t i) const;
  std::vector<Value> values(size_t i) const;
  at::Tensor tensor(size_t i) const { return argument(i).toTensor(); }
  /// Its dimensions; unwraps nothing.
  int64_t dim(size_t i) const { return argument(i).toTensor().dim(); }
  /// One letter for each (dimension_map.h).
  std::string letters(size_t i) const { return oslo::letters(dim(i)); }

  /// Runs the operator itself on local tensors as `map` says: one string an operand, for the
  /// defined tensor arguments in order. The usual rule is this one line.
  void run(const DimensionMap& map);
  /// The same with `local` in the operator's place: from the local operands to the local results.
  using LocalFunction = std::function<std::vector<c10::IValue>(c10::ArrayRef<at::Tensor>)>;
  /// `may_wait`: sums that the plan has join others stay partial.
  void run(const DimensionMap& map, const LocalFunction& local, bool may_wait = false);

  /// The operator on other arguments: those of the call, with `local` for its tensors in order.
  std::vector<c10::IValue> call_below(c10::ArrayRef<at::Tensor> local) const;
  /// The operator on exactly these arguments.
  std::vector<c10::IValue> call_with(std::vector<c10::IValue> arguments) const;

  /// The operator on tensors of the global shapes without content: throws what it throws on one
  /// device when the shapes do not fit.
  void check_shapes() const;

  /// The operands in argument order, undefined ones left out.
  c10::SmallVector<Value, 4> operands() const;

  // Results, in order. `held`: what a view operator gathered of its first argument and took the
  // results of; null where it did not have to.
  void result(Value value, const Value* held = nullptr);
  void result(std::vector<Value> values, const Value* held = nullptr);
  void result_plain(c10::IValue value);
  /// Those that were handed in.
  c10::ArrayRef<c10::IValue> results() const { return results_; }

  /// What the placed arguments share with all values of their model.
  const ContextPtr& context() const { return context_; }

  /// Kernels that compute what stands beside a product along with it; null: nobody asks for them,
  /// or there is nothing to compute.
  KernelFusion* fusion() const { return place_.elsewhere ? nullptr : context_->fusion.get(); }

  // A rule does not ask where values live: this rank may have a shape in place of any of them.
  /// A tensor of this call, for a rule that goes on with operators on it.
  at::Tensor placed(Value value) const;
  /// Whether results are placed even where nothing cuts them.
  bool keeps_results_placed() const { return !place_.stages.empty() || follows_; }
  /// What an operator that reads elements returns: what `look` says where this rank has them; else
  /// what `shapes_tell`, if they do, or the answer of whoever imagines content. Throws where nobody
  /// does, naming the operator.
  c10::IValue read(c10::function_ref<c10::IValue()> look,
                   c10::function_ref<std::optional<c10::IValue>()> shapes_tell) const;
  /// All elements of an operand, for a rule that looks at them; where no rank has any, `imagined`.
  /// Throws likewise.
  at::Tensor elements(const Value& value, c10::function_ref<at::Tensor()> imagined) const;
  /// Throws, with what the operator `does`, where this rank has shapes only.
  void check_has_elements(const char* does) const;

  // For the engine and the door (residency/residence.h).
  const CallPlace& place() const { return place_; }
  /// Null: every rank holds all values.
  Residence* residence() const { return residence_; }
  /// A result of this call on its stages, and followed where an operand is.
  Value resident(Value value) const;
  /// In a call that is elsewhere: whether to start again with zeros in place of shapes, for a rule
  /// that uses an operator without a kernel for shapes.
  bool restart_on_zeros();

  /// Puts the results where the arguments were.
  void finish();

  /// Runs the operator on gathered operands, and reports it.
  void gather(const std::string& reason);

 private:
  /// Whether it is of the forward: beside gradients, and states that an optimizer keeps of them,
  /// weights are read as they are.
  bool reads_copies() const;
  Value seen(const at::Tensor& tensor) const;
  /// The same, kept: of the tensor that is `place`-th among all that are defined.
  const Value& read(size_t place, const at::Tensor& tensor) const;
  /// How many defined tensors the arguments before `i` have.
  size_t place_of(size_t i) const;
  std::vector<c10::IValue> seen_arguments() const;
  at::Tensor wrapped(Value value, const Value* held, size_t element = 0);
  at::Tensor wrapped_view(Value value, const Value* held, size_t element);
  std::vector<int64_t> strides_of_view(const Value& value, bool gathered, size_t element) const;

  const OperatorEntry& op_;
  torch::jit::Stack& stack_;
  size_t base_;
  ContextPtr context_;
  Residence* residence_;
  CallPlace place_;
  bool follows_;       ///< results are followed, as an operand is
  bool reads_copies_;  ///< of weights, in the type that the model computes in
  struct Operand {
    Value value;
    bool recorded = false;  ///< unwrapped while gradients were recorded
  };
  mutable c10::SmallVector<Operand, 4> operands_;  ///< undefined: not read yet
  std::shared_ptr<GatheredBase> gathered_;
  c10::SmallVector<c10::IValue, 2> results_;
};

/// What the plan says of the uses of a weight, or of another form of it (its transpose); null for
/// any other tensor.
const std::shared_ptr<const WeightUses>& weight_uses_of(const at::Tensor& tensor);

}  // namespace oslo
