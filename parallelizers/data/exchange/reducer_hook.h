#pragma once

#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "mpu/group/group.h"
#include "parallelizers/data/exchange/gradient_exchange.h"
#include "parallelizers/data/exchange/stand_ins.h"

namespace oslo {

/// How LibTorch's reducer hands on a bucket that is full: to our exchange, so that its strategy
/// moves it, the group's ledger counts it and a lost rank gets our error message.
class ReducerHook final : public c10d::CommHookInterface {
 public:
  /// Calls `last_bucket_left` when the last bucket of a backward pass sets out. `exchange` is over
  /// `group`. `reduced` are what the reducer was given.
  ReducerHook(std::shared_ptr<Group> group, const GradientExchange& exchange,
              std::shared_ptr<const StandIns> reduced, std::function<void()> last_bucket_left)
      : group_(std::move(group)),
        exchange_(exchange),
        reduced_(std::move(reduced)),
        last_bucket_left_(std::move(last_bucket_left)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }

 private:
  std::shared_ptr<Group> group_;  ///< lives as long as the reducer
  GradientExchange exchange_;
  std::shared_ptr<const StandIns> reduced_;
  std::function<void()> last_bucket_left_;
};

}  // namespace oslo
