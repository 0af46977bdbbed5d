#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <type_traits>

#include "parallelizers/data/data_parallel_core.h"
#include "parallelizers/data/distributed_data_parallel.h"

namespace oslo {

/// How many elements (tokens, boxes, or what their weights come to) a sum is of: a number, or a
/// tensor of one, which is read. Not negative; zero is a count like any other.
class Count {
 public:
  template <typename Number>
  requires std::is_arithmetic_v<Number> Count(Number count) : value_(static_cast<double>(count)) {}
  Count(const at::Tensor& count);

  double value() const { return value_; }

 private:
  double value_;
};

/// The mean of a loss over the elements of all data ranks, where ranks and micro-batches have
/// unequal numbers of them. DistributedDataParallel averages the ranks' means: with five tokens of
/// loss 1 w on one rank and one of 7 w on another it gives w the gradient 4, where 2 is the mean.
///
///     auto sum = cross_entropy(logits, labels, CrossEntropyFuncOptions().reduction(torch::kSum));
///     oslo::counted_mean(sum, labels.ne(-100).sum(), ddp).backward();
///
/// `loss_sum` is this rank's sum, one number; the result shows this call's sum over its count, of
/// all data ranks (nothing counted anywhere: NaN, as LibTorch's mean of nothing, and gradients of
/// zero). Its backward pass gives gradients that are, once exchanged, the mean over all counts
/// since they were last empty:
///   - of one backward pass a step the sum is scaled at once, so that other terms may stand beside
///     it, also other counted means;
///   - where gradients accumulate (`no_sync`, or several passes that exchange them) later counts
///     are unknown. Sums add up, what is there is scaled when more comes, and the pass that
///     exchanges divides by all counts. A loss with other terms, or with several counts, then needs
///     `step_count`, which is this rank's count of the whole step and scales at once.
/// The `no_sync` guard has to hold at this call, too.
///
/// Throws the same `Error` on all data ranks: for a count that is negative or not finite, for a
/// loss that is not one number or has no history on some ranks alone, where ranks have accumulated
/// differently, and (in the backward pass) where gradients cannot become one mean. Collective over
/// the data ranks: one message of 56 bytes a rank. On one rank nothing is sent.
template <typename M>
at::Tensor counted_mean(const at::Tensor& loss_sum, const Count& count,
                        const DistributedDataParallel<M>& ddp) {
  return counted_mean(loss_sum, count, ddp.core(), std::nullopt);
}

template <typename M>
at::Tensor counted_mean(const at::Tensor& loss_sum, const Count& count,
                        const DistributedDataParallel<M>& ddp, const Count& step_count) {
  return counted_mean(loss_sum, count, ddp.core(), step_count);
}

at::Tensor counted_mean(const at::Tensor& loss_sum, const Count& count, DataParallelCore& core,
                        const std::optional<Count>& step_count);

}  // namespace oslo
