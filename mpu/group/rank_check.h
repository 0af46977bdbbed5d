#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "mpu/group/group.h"

namespace oslo {

/// Whether values that must be the same on all ranks of a group are compared: where the
/// environment says `OSLO_CHECK=1`, or inside a RankCheckScope. Reads one flag when off.
bool checks_ranks();

/// Ranks that were never seeded draw each for itself until `initialize` gives them one state, so
/// what they drew before it, a batch say, differs. Unless the environment says `OSLO_CHECK=0`, the
/// next `comparisons` on this thread are made. All ranks must do so.
void compare_next(int comparisons);

/// The same for all comparisons in the next FirstStepCheck of this thread: ranks of several
/// pipeline stages do not count alike.
void compare_first_step();

/// Turns the comparison on, or off, for this thread until it goes out of scope. All ranks must do
/// so.
class RankCheckScope {
 public:
  explicit RankCheckScope(bool on = true);
  ~RankCheckScope();
  RankCheckScope(const RankCheckScope&) = delete;
  RankCheckScope& operator=(const RankCheckScope&) = delete;

 private:
  std::optional<bool> outer_;
};

/// Around a step of a schedule: if `compare_first_step` was called, it is compared.
class FirstStepCheck {
 public:
  FirstStepCheck();

 private:
  std::optional<RankCheckScope> scope_;
};

/// Throws on every rank of `group` when its ranks call this for different operators (the current
/// RuleScope), with other shapes, or with values that differ by more than rounding; `what` names
/// the tensor. One small collective, counted as "OSLO_CHECK"; all elements are moved only where
/// digests differ. Nothing at size 1 and on shapes. Call it on every rank, where `checks_ranks()`.
void check_same_on_ranks(const at::Tensor& tensor, Group& group, const char* what);

/// A digest of a tensor's bytes, in order; 0 for one without content. Computed on its device,
/// another one than on the CPU: compare tensors of one kind of device.
uint64_t content_digest(const at::Tensor& tensor);

}  // namespace oslo
