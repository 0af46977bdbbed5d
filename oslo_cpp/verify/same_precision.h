#pragma once

#include <ATen/core/Tensor.h>

#include "oslo_cpp/verify/run_model.h"
#include "parallelizers/placement/layout/precision.h"

namespace oslo {

/// Runs the reference as a model with `precision` runs: its forward under LibTorch's autocast of
/// that type on `device`, which remembers no casts, so that nobody has to empty a cache that is one
/// for the process.
detail::RunModel run_as_with(const Precision& precision, at::DeviceType device,
                             const detail::RunModel& run);

/// How far what is computed may lie apart, as a fraction of the largest value: what autocast has
/// rounded is as rough in fp32 behind it. The square root of its type's machine epsilon; 0 without.
double tolerance_under(const Precision& precision);

/// What stands for a model's weight or gradient where the reference's `like` is half and this one
/// is in fp32: the master of it, or a gradient that adds up so. Rounded to the type; any other
/// tensor as it is.
at::Tensor as_rounded(const at::Tensor& own, const at::Tensor& like);

}  // namespace oslo
