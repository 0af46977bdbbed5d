#pragma once

#include <c10/util/Type.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <type_traits>

#include "mpu/base/error.h"
#include "parallelizers/data/data_parallel_core.h"
#include "parallelizers/modules/output_tensors.h"

namespace oslo {

namespace detail {

template <typename M>
struct ModuleOf {  // a module class
  using Impl = M;
  using Handle = std::shared_ptr<M>;
  static const Handle& pointer(const Handle& handle) { return handle; }
};
template <typename M>
struct ModuleOf<std::shared_ptr<M>> : ModuleOf<M> {};
template <typename M>
requires std::is_base_of_v<torch::detail::ModuleHolderIndicator, M>
struct ModuleOf<M> {  // what TORCH_MODULE makes
  using Impl = typename M::ContainedType;
  using Handle = M;
  static const std::shared_ptr<Impl>& pointer(const Handle& handle) { return handle.ptr(); }
};

}  // namespace detail

/// Data parallelism: every rank of `group` holds the same model and sees another part of the batch;
/// backward averages gradients over the group, in buckets, while it still computes. PyTorch's
/// DistributedDataParallel in C++, on LibTorch's own reducer.
///
/// `M` is a module holder (TORCH_MODULE), the module class behind it, or a shared_ptr to one. The
/// module may be an ordinary one, or one that `initialize` cut over tensor ranks: then each rank
/// averages its parts. Made after `initialize`, from the same model on all ranks of the group.
///
///   oslo::DistributedDataParallel<Net> ddp(net, mpu.get_data_parallel_group());
///   loss_of(ddp.forward(x), y).backward();
///
/// Construction is collective over the group: it compares the models (an error on every rank names
/// the first difference) and gives all ranks the parameters and buffers of data rank 0. In a group
/// of one rank nothing happens, at construction or later.
///
/// Parameters must keep their type, device, mark and requires_grad afterwards; forward checks it.
template <typename M>
class DistributedDataParallel {
  using Of = detail::ModuleOf<M>;

 public:
  using Impl = typename Of::Impl;
  using Handle = typename Of::Handle;

  DistributedDataParallel(Handle module, c10::intrusive_ptr<c10d::ProcessGroup> group,
                          const DDPOptions& options = {})
      : module_(std::move(module)),
        core_(std::make_unique<DataParallelCore>(Of::pointer(module_), std::move(group), options)) {
  }

  /// The same over a group of ours, for example `mpu.data_group()`; errors then name its ranks.
  DistributedDataParallel(Handle module, std::shared_ptr<Group> group,
                          const DDPOptions& options = {})
      : module_(std::move(module)),
        core_(std::make_unique<DataParallelCore>(Of::pointer(module_), std::move(group), options)) {
  }

  /// The module's forward. With gradients on, prepares the exchange that backward will do.
  template <typename... Args>
  auto forward(Args&&... args) {
    Impl& module = *Of::pointer(module_);
    using Output = decltype(module.forward(std::forward<Args>(args)...));
    core_->check_divided();
    if (!core_->active()) return module.forward(std::forward<Args>(args)...);
    core_->before_forward();
    std::vector<at::Tensor> tensors;
    if constexpr (std::is_void_v<Output>) {
      module.forward(std::forward<Args>(args)...);
      core_->after_forward(tensors);
    } else {
      std::decay_t<Output> output = module.forward(std::forward<Args>(args)...);
      if (core_->finds_unused()) {
        OSLO_CHECK(OutputTensors<std::decay_t<Output>>::known,
                   "find_unused_parameters has to see the tensors that forward returns, and cannot "
                   "look into its type ",
                   c10::demangle_type<std::decay_t<Output>>(),
                   "; return tensors in a tuple, vector or map, or specialize oslo::OutputTensors");
        collect_tensors(output, tensors);
      }
      core_->after_forward(tensors);
      return output;
    }
  }

  /// While the result lives, forward and backward passes only add up gradients; the first backward
  /// of a later forward exchanges the sum. Put both the forward and the backward under it.
  NoSyncGuard no_sync() { return NoSyncGuard(*core_); }

  Impl* operator->() const { return Of::pointer(module_).get(); }
  const Handle& module() const { return module_; }
  DataParallelCore& core() const { return *core_; }

  /// What the group moved (an MPU's group counts here and there alike): one "all_reduce" a bucket
  /// and, with find_unused_parameters, one for the map of used parameters; buffers as "broadcast".
  Ledger& ledger() { return core_->group().ledger(); }

  /// Bytes of each bucket, in the order of their exchange. The second step's forward rebuilds them
  /// in the order in which gradients came. Empty in a group of one rank.
  std::vector<int64_t> bucket_sizes() const { return core_->bucket_sizes(); }

 private:
  Handle module_;
  std::unique_ptr<DataParallelCore> core_;
};

template <typename M, typename G>
DistributedDataParallel(M, G) -> DistributedDataParallel<M>;
template <typename M, typename G>
DistributedDataParallel(M, G, DDPOptions) -> DistributedDataParallel<M>;

}  // namespace oslo
