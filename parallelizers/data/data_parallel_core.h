#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <vector>

#include "mpu/group/group.h"
#include "parallelizers/data/exchange/ddp_options.h"

namespace oslo {

class CountedGradients;

/// What `DistributedDataParallel` does around the forward of a module, whatever the module's type:
/// compares replicas, sends buffers, and has backward passes exchange gradients (`PassExchange`).
class DataParallelCore {
 public:
  DataParallelCore(std::shared_ptr<torch::nn::Module> module, std::shared_ptr<Group> group,
                   const DDPOptions& options);
  DataParallelCore(std::shared_ptr<torch::nn::Module> module,
                   c10::intrusive_ptr<c10d::ProcessGroup> group, const DDPOptions& options);
  ~DataParallelCore();
  DataParallelCore(const DataParallelCore&) = delete;
  DataParallelCore& operator=(const DataParallelCore&) = delete;

  /// False in a group of one rank: there is nothing to do.
  bool active() const { return state_ != nullptr; }
  /// Whether `after_forward` needs to see the outputs.
  bool finds_unused() const;
  /// Throws where the group's config divides batches (num_accumulation_steps) and this forward is
  /// of a whole one: outside of `no_sync`, by which a program divides them itself. In a group of
  /// one rank too.
  void check_divided();
  void before_forward();
  /// `outputs`: the tensors that forward returned, where `finds_unused()`.
  void after_forward(const std::vector<at::Tensor>& outputs);

  bool synchronizes() const { return synchronizes_; }
  void synchronize(bool on) { synchronizes_ = on; }

  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
  Group& group() { return *group_; }
  const std::shared_ptr<Group>& shared_group() const { return group_; }
  std::vector<int64_t> bucket_sizes() const;

  /// Whether the backward pass of the last forward that recorded gradients exchanges them. In a
  /// group of one rank: whether it would.
  bool exchanges() const { return active() ? exchanges_ : synchronizes_; }
  /// What counted means have left in the gradients (counted_mean.h).
  const std::shared_ptr<CountedGradients>& counted_gradients();

 private:
  struct State;
  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<Group> group_;
  std::unique_ptr<State> state_;
  bool synchronizes_ = true;
  bool divides_ = false;  ///< a forward under no_sync has been
  bool exchanges_ = true;
  std::shared_ptr<CountedGradients> counted_;  ///< made when it is first asked for
};

/// While alive, backward passes add up gradients without exchanging them. See
/// `DistributedDataParallel::no_sync`.
class [[nodiscard]] NoSyncGuard {
 public:
  explicit NoSyncGuard(DataParallelCore& core) : core_(core), before_(core.synchronizes()) {
    core_.synchronize(false);
  }
  ~NoSyncGuard() { core_.synchronize(before_); }
  NoSyncGuard(const NoSyncGuard&) = delete;
  NoSyncGuard& operator=(const NoSyncGuard&) = delete;

 private:
  DataParallelCore& core_;
  bool before_;
};

}  // namespace oslo
