#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "mpu/grid/mpu.h"

namespace oslo {

/// Means by their names, the same on every rank.
using Metrics = std::map<std::string, double>;

/// Sums of what is measured, batch by batch, and how many elements they are of, on this rank; then
/// their means over all batches and data ranks. So an unequal last batch, and data ranks with
/// unequal rows, weigh by what they have, and an evaluation is that of one device.
///
///     sums.add("accuracy", (output.argmax(1) == label).sum(), label.numel());
///     ...
///     double accuracy = sums.means(mpu).at("accuracy");
///
/// Ranks of pipeline stages that do not have a value add nothing of it, by `add(name, 0, 0)`: all
/// ranks have the same names. Adding does not communicate, and waits for no device. Not for several
/// threads at a time.
class MetricSums {
 public:
  /// `sum`: one number; `count`: of how many elements, or weights. Where it is zero nothing is
  /// added, whatever the sum is (the mean of nothing is NaN).
  void add(const std::string& name, const at::Tensor& sum, double count);
  void add(const std::string& name, double sum, double count);

  /// The means over all ranks; NaN where nothing was counted. Throws, on all ranks, where the names
  /// differ. Collective over the world: a few words by its store, and one all-reduce each over data
  /// ranks and stages.
  Metrics means(const MPU& mpu) const;

  void clear() { sums_.clear(); }

 private:
  struct Sum {
    at::Tensor on_device;  ///< undefined: none yet
    double on_host = 0, count = 0;
  };
  std::map<std::string, Sum> sums_;
};

}  // namespace oslo
