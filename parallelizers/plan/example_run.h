#pragma once

#include <torch/nn/module.h>

#include <functional>

namespace oslo {

/// Runs a forward on example data without leaving a trace: no gradients, and the random state and
/// the module's buffers (running statistics, caches) are as before afterwards, also when it throws.
void run_example(torch::nn::Module& model, const std::function<void()>& example);

}  // namespace oslo
