#pragma once

#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "mpu/group/group.h"

namespace oslo {

/// How LibTorch's reducer exchanges one bucket: the mean over our group, so that its ledger counts
/// it (under the rule "ddp") and a lost rank gets our error message.
class GradientHook final : public c10d::CommHookInterface {
 public:
  /// Calls `last_bucket_left` when the last bucket of a backward pass sets out.
  GradientHook(std::shared_ptr<Group> group, std::function<void()> last_bucket_left);

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  at::Tensor parseHookResult(const c10::IValue& result) override { return result.toTensor(); }

 private:
  std::shared_ptr<Group> group_;
  std::function<void()> last_bucket_left_;
  Pending::Label label_;  ///< what to say when an exchange fails
};

}  // namespace oslo
