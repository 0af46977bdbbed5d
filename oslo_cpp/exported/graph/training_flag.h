#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <string_view>

namespace oslo::exported {

/// How an operator is told that the model is in training. torch.export writes down what Python's
/// `module.training` was; here the module that the node came of is asked in every run.
struct TrainingFlag {
  std::string_view argument;  ///< "train"
  bool probability = false;   ///< a share to drop, 0 in evaluation
  /// Where that argument is none, the operator does the same in training and evaluation.
  std::string_view needs = {};
};

/// The flag of an operator: of one that draws random numbers, as its schema says, its argument
/// "train", "training" or "dropout_p"; of norms, what they compute with. Nothing where it has none.
std::optional<TrainingFlag> training_flag(const c10::OperatorHandle& operation);

/// Whether an operator's schema says that it draws random numbers.
bool may_draw(const c10::OperatorHandle& operation);

}  // namespace oslo::exported
