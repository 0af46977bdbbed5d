#pragma once

#include <torch/data/samplers/base.h>
#include <torch/data/samplers/distributed.h>

#include <cstddef>
#include <optional>
#include <vector>

namespace gpt2 {

/// This data rank's share of global batches that do not depend on how many data ranks there are.
///
/// `DistributedRandomSampler` shuffles all samples with the epoch as its seed and hands replica r
/// the r-th contiguous part. With one replica a data rank, step s would take the s-th piece of each
/// part: other samples for other numbers of ranks. So here a replica is a *place in the global
/// batch*: global batch s holds the s-th sample of each of `global_batch` parts, and data rank r
/// takes the places [r * local, (r + 1) * local), local = global_batch / data ranks. Joined in the
/// order of the ranks, their shares are the batch that a single process would take.
///
/// Samples that fill no global batch are left out, so that all ranks run equally many steps.
class GlobalBatchSampler : public torch::data::samplers::Sampler<> {
 public:
  /// Throws std::runtime_error if `global_batch` is not a multiple of `data_ranks` or is larger
  /// than `size`, the number of samples.
  GlobalBatchSampler(std::size_t size, std::size_t global_batch, std::size_t data_ranks,
                     std::size_t data_rank);

  /// Another order of the samples from the next `reset` on (a data loader resets at `begin()`).
  void set_epoch(std::size_t epoch);

  /// The epoch that the next `reset` begins lacks its first `step` batches: where a run goes on
  /// that ended behind them.
  void start_at(std::size_t step) { start_ = step; }

  std::size_t local_batch() const { return places_.size(); }
  std::size_t steps_per_epoch() const { return steps_; }

  /// The next step's samples; `batch_size` must be `local_batch()`.
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  std::vector<torch::data::samplers::DistributedRandomSampler> places_;
  std::size_t global_batch_, steps_, start_ = 0;
};

}  // namespace gpt2
