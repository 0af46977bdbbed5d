#pragma once

#include <cstdint>
#include <vector>

namespace oslo {

/// Which samples an iteration is of, the same on every rank and for every number of them: in each
/// epoch all samples in an order that is drawn from the seed and the epoch alone,
///
///     at::randperm(samples, a CPU generator of seed * 1000003 + epoch)
///
/// `batch` of them an iteration. Those behind an epoch's last whole batch are left out of it.
class SampleOrder {
 public:
  /// Throws `Error` for fewer samples than a batch has.
  SampleOrder(int64_t samples, int64_t batch, int64_t seed);

  int64_t batches_an_epoch() const { return samples_ / batch_; }
  /// The samples of `iteration`, counted from 0 over all epochs. Costs a permutation an epoch.
  std::vector<int64_t> of(int64_t iteration);

 private:
  int64_t samples_, batch_, seed_;
  int64_t epoch_ = -1;
  std::vector<int64_t> order_;
};

}  // namespace oslo
