#pragma once

#include <ATen/core/ivalue.h>

#include <map>
#include <string>

namespace oslo {

/// How large the errors are that rounding leaves in what a forward computes, from the arithmetic:
/// an operator that sums leaves some units in the last place of what it summed. Where the sum
/// cancels (the mean of values that were centred before) that is all there is of the result, and
/// its own size says nothing. What is computed of nothing but noise is noise of that size.
class RoundingNoise {
 public:
  /// Before an operator; `name` with or without its namespace.
  void enter(const std::string& name, c10::ArrayRef<c10::IValue> inputs);
  /// After it: the absolute error that its results may have.
  double leave(c10::ArrayRef<c10::IValue> outputs);
  /// Of a tensor that an operator returned, wrote or (running statistics) may have written.
  double in(const at::Tensor& tensor) const;

 private:
  std::map<const c10::TensorImpl*, double> noise_;  ///< of tensors that are nothing else
  std::map<const c10::TensorImpl*, double> statistics_;
  double left_ = 0;
  double sum_scale_ = 0;
  int64_t elements_ = 0;
};

}  // namespace oslo
