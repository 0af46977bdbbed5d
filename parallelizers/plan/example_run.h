#pragma once

#include <ATen/core/Generator.h>
#include <torch/nn/module.h>

#include <functional>
#include <vector>

namespace oslo {

/// Runs a forward on example data without leaving a trace: no gradients, and the states of the
/// default generators and of `generators`, and the module's buffers (running statistics, caches),
/// are as before afterwards, also when it throws.
void run_example(torch::nn::Module& model, const std::function<void()>& example,
                 std::vector<at::Generator> generators = {});

}  // namespace oslo
