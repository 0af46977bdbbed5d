#pragma once

#include <oslo_cpp/oslo.h>

#include <cstdint>
#include <fstream>

#include "tutorial_options.h"

namespace gpt2 {

/// What a training says of its steps: rank 0 prints a line for each, "step 1/100  loss 10.8214",
/// and writes the losses where the options ask for them.
class StepLog {
 public:
  /// Makes the output folder, which is there for every rank behind this. Collective.
  StepLog(const TutorialOptions& options, const oslo::World& world);

  void add(std::int64_t step, const torch::Tensor& loss);

 private:
  const std::int64_t steps_;
  const bool speaks_;
  std::ofstream losses_;
};

}  // namespace gpt2
