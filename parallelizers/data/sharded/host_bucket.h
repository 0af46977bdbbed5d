#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "parallelizers/data/sharded/host/host_weights.h"
#include "parallelizers/data/sharded/shard_bucket.h"

namespace oslo {

/// A bucket whose whole weights lie in memory that the replicas share on one host, of which their
/// parts are stretches: nothing is gathered. Of a weight that cannot be cut each has all, in memory
/// of its own. Gradients of whole weights are left in the shared memory, too (Deposits), unless
/// somebody sees their average within the pass.
class HostBucket final : public ShardBucket {
 public:
  /// Weights lie in `all->host()`.
  HostBucket(std::string name, size_t number, std::shared_ptr<Group> replicas,
             std::shared_ptr<ShardBuckets> all)
      : ShardBucket(std::move(name), number, std::move(replicas), std::move(all)),
        host_(all_->host()) {}

  /// The part is moved there where it does not lie there, unless it is deferred, or the weight is
  /// not cut.
  void lay_weight(size_t number, const at::Tensor& parameter, const LayoutPtr& layout,
                  LayoutPtr used) override;
  std::shared_ptr<void> write(size_t number, const at::Tensor& tensor) override;
  void count_writes_of(const at::Tensor& /*data*/) override {}  // they are seen as they are written
  int64_t gathered_bytes() const override { return 0; }
  bool gathers() const override { return false; }
  void renew_kept() override { bring(parts()); }
  void fill() override;

 private:
  class Write;
  class Gradient;

  void bring(const std::vector<at::Tensor>& parts) override;
  at::Tensor alias_of_whole(size_t number, const at::Tensor& part) const override;
  bool take_gradients(const std::vector<at::Tensor>& parts,
                      const std::vector<at::Tensor>& gradients) override;
  bool take_gradient(size_t number, const at::Tensor& gradient) override;
  bool are_awaited(const std::vector<at::Tensor>& parts) const;
  void take_average(size_t number, const at::Tensor& average);
  void move_in(size_t number, const at::Tensor& parameter);

  const std::shared_ptr<HostWeights> host_;
};

}  // namespace oslo
