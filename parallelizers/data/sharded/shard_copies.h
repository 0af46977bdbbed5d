#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "mpu/group/group.h"

namespace oslo {

/// Several groups of data replicas have the weights of one model, each group once (hybrid shards,
/// Zhao et al. 2023, arXiv 2304.11277, section 3.2.2): what the gradients of this rank's parts,
/// averaged inside its group, have to do with those of the other groups.
///
/// A backward pass leaves in `.grad` what it has added to it of this group, and when it has ended
/// all of `.grad` is averaged over the copies: once however many passes came before it that were
/// not synchronised (`no_sync`), and what passes before had averaged stays what it is, as copies
/// have it alike. It is the rule of LibTorch's DDP. A flag a weight travels with it, so that copies
/// may use different weights.
///
/// With one group nothing happens. Collective over the copies, in backward passes.
class ShardCopies {
 public:
  /// `copies`: ranks that have this one's parts; null: none but this one.
  explicit ShardCopies(std::shared_ptr<Group> copies) : copies_(std::move(copies)) {}

  /// Whether backward passes from here on end with the average.
  void synchronize(bool on) { synchronizes_ = on; }
  bool synchronizes() const { return synchronizes_; }

  /// In a backward pass that gives a part a gradient. `then`: `average`, of the parts of the model;
  /// called when the pass has ended, once, if it synchronises.
  void gradients_come(std::function<void()> then);

  /// Averages `.grad` of these parts of trained weights, in buckets.
  void average(const std::vector<at::Tensor>& parts) const;

  /// Whether somebody sees what this pass gives these parts before it has ended: by hooks, or
  /// because it is autograd::grad's.
  bool are_seen(const std::vector<at::Tensor>& parts) const;
  /// The average over copies of gradients, with numbers behind them, that were averaged inside the
  /// groups; uses the memory of `flat`.
  at::Tensor averaged(const at::Tensor& flat) const;

 private:
  const std::shared_ptr<Group> copies_;
  bool synchronizes_ = true;
  int pass_ = -1;  ///< the one whose end is waited for
};

}  // namespace oslo
