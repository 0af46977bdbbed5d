#pragma once

#include <torch/arg.h>

#include <cstdint>

namespace oslo {

/// How a GradScaler chooses its scale; names and numbers are PyTorch's.
struct GradScalerOptions {
  /// What losses are multiplied by at first: a power of two, so that gradients keep their digits.
  TORCH_ARG(double, init_scale) = 65536.0;
  /// After `growth_interval` steps in a row without overflow the scale is multiplied by it.
  TORCH_ARG(double, growth_factor) = 2.0;
  /// After a step with overflow the scale is multiplied by it.
  TORCH_ARG(double, backoff_factor) = 0.5;
  TORCH_ARG(int64_t, growth_interval) = 2000;
  /// False: `scale` returns what it is given, `step` calls the optimizer, and nothing else happens.
  TORCH_ARG(bool, enabled) = true;
};

}  // namespace oslo
