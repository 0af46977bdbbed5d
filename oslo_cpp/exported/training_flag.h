#pragma once

#include <string_view>

namespace oslo::exported {

/// How an operator is told that the model is in training. torch.export writes down what Python's
/// `module.training` was; here the module that the node came of is asked in every run.
struct TrainingFlag {
  std::string_view operator_name;  ///< "aten::dropout"
  std::string_view argument;       ///< "train"
  bool probability = false;        ///< a share to drop, 0 in evaluation
  /// Where that argument is none, the operator does the same in training and evaluation.
  std::string_view needs = {};
};

/// The flag of an operator, or null where it has none.
const TrainingFlag* training_flag(std::string_view operator_name);

}  // namespace oslo::exported
