#pragma once

#include <map>
#include <vector>

#include "parallelizers/deferred/recipe.h"

namespace oslo {

/// Runs recorded operators again, on whole tensors: any operator, at the cost of all the memory
/// that they took at first. What several tensors need is computed once.
class Replay {
 public:
  /// What a storage holds, as bytes. To be copied by whoever writes to it.
  at::Tensor content(const Recipe& recipe);
  /// An operand's value.
  at::Tensor value(const RecordedOperand& operand);

 private:
  std::vector<c10::IValue>& results_of(const RecordedCallPtr& call);

  std::map<Recipe, at::Tensor> contents_;
  std::map<RecordedCallPtr, std::vector<c10::IValue>> results_;
};

/// A tensor that lies so in the memory of `bytes`.
at::Tensor view_of(const at::Tensor& bytes, const Geometry& at);

/// Runs a call with these tensors in place of its shapes, on generators of its own, and leaves the
/// results on the stack. Neither recorded nor in a graph.
std::vector<c10::IValue> run_call(const RecordedCall& call, const std::vector<at::Tensor>& operands,
                                  const at::Generator* generator = nullptr);

}  // namespace oslo
