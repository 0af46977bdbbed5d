#pragma once

#include <ATen/core/Tensor.h>

#include "parallelizers/data/counted_mean.h"

namespace oslo {

/// What an engine's criterion returns where batches, or data ranks, have unequal numbers of
/// elements: the sum of a loss, one number, and how many elements it is of. The engine then learns
/// from the mean over all elements of a step, of all its batches and data ranks (counted_mean.h).
///
///     auto criterion = [](const torch::Tensor& output, const torch::Tensor& label) {
///       return oslo::CountedLoss{sum_of(output, label), label.ne(-100).sum()};
///     };
struct CountedLoss {
  at::Tensor sum;
  Count count;
};

}  // namespace oslo
