#include "mpu/collectives/collectives.h"

#include <numeric>
#include <optional>
#include <utility>

#include "mpu/collectives/collective_node.h"
#include "mpu/collectives/divided_backward.h"
#include "mpu/collectives/overlap.h"
#include "mpu/group/rank_check.h"

namespace oslo {

using namespace collective_node;

namespace {

/// The same storage under a new identity, without history.
at::Tensor alias_of(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  return at::Tensor(impl->shallow_copy_and_detach(impl->version_counter(), false));
}

/// Another result of a node that has one.
at::Tensor result_of(NodePtr node, at::Tensor output) {
  torch::autograd::impl::set_gradient_edge(output, {std::move(node), 0});
  return output;
}

/// Whether the memory is this tensor's alone: no other tensor, view or saved value shares it, and
/// LibTorch allocated it (from_blob's memory is the user's).
bool nobody_else_sees(const at::Tensor& tensor) {
  if (tensor.use_count() > 1 || !tensor.has_storage() || !tensor.is_contiguous()) return false;
  const c10::Storage& storage = tensor.storage();
  return storage.use_count() == 1 && storage.resizable();
}

class CopyBackward final : public DividableNode {
 public:
  using DividableNode::DividableNode;
  std::string name() const override { return "OsloCopyBackward"; }
  at::Tensor call(at::Tensor gradient) override { return reduce_from(std::move(gradient), group_); }
  Pending start(at::Tensor gradient) override {
    if (!nobody_else_sees(gradient)) gradient = gradient.clone(at::MemoryFormat::Contiguous);
    return group_->start_all_reduce(std::move(gradient));
  }
};

class ReduceBackward final : public CollectiveNode {
 public:
  using CollectiveNode::CollectiveNode;
  std::string name() const override { return "OsloReduceBackward"; }
  at::Tensor backward(at::Tensor gradient) override {
    if (checks_ranks()) check_same_on_ranks(gradient, *group_, "the gradient of its result");
    return copy_to(gradient, group_);
  }
};

/// A node that knows the ranks' parts along one dimension.
template <typename Base>
class WithParts : public Base {
 public:
  WithParts(GroupPtr group, int64_t dim, c10::IntArrayRef sizes)
      : Base(std::move(group)), dim_(dim), sizes_(sizes.begin(), sizes.end()) {}

 protected:
  int64_t dim_;
  c10::SmallVector<int64_t, 8> sizes_;
};
using PartNode = WithParts<CollectiveNode>;

at::Tensor own_part(const at::Tensor& tensor, const Group& group, int64_t dim,
                    c10::IntArrayRef sizes) {
  const auto before = sizes.slice(0, group.rank());
  const int64_t start = std::accumulate(before.begin(), before.end(), int64_t{0});
  return tensor.narrow(dim, start, sizes[group.rank()]).contiguous();
}

class ScatterBackward final : public PartNode {
 public:
  using PartNode::PartNode;
  std::string name() const override { return "OsloScatterBackward"; }
  at::Tensor backward(at::Tensor gradient) override {
    return gather_from(gradient, group_, dim_, sizes_);
  }
};

class GatherBackward final : public PartNode {
 public:
  using PartNode::PartNode;
  std::string name() const override { return "OsloGatherBackward"; }
  at::Tensor backward(at::Tensor gradient) override {
    if (records(gradient)) return scatter_to(gradient, group_, dim_, sizes_);
    if (checks_ranks()) check_same_on_ranks(gradient, *group_, "the gradient of what was gathered");
    return own_part(gradient, *group_, dim_, sizes_);
  }
};

class GatherAndCopyBackward final : public WithParts<DividableNode> {
 public:
  using WithParts::WithParts;
  bool gathers(const Group& group, int64_t dim, c10::IntArrayRef sizes) const {
    return group_.get() == &group && dim_ == dim && c10::IntArrayRef(sizes_) == sizes;
  }
  /// Does not keep it alive.
  void remember(const at::Tensor& gathered) {
    gathered_.emplace(gathered.getIntrusivePtr());
    version_ = gathered._version();
  }
  /// What was gathered, as it was; undefined where nobody holds it any more.
  at::Tensor gathered() const {
    const auto held = gathered_ ? gathered_->lock() : nullptr;
    if (!held) return {};
    at::Tensor tensor(held);
    return tensor._version() == version_ ? tensor : at::Tensor();
  }
  std::string name() const override { return "OsloGatherAndCopyBackward"; }
  at::Tensor call(at::Tensor gradient) override {
    return reduce_and_scatter(gradient, group_, dim_, sizes_);
  }
  Pending start(at::Tensor gradient) override {
    return group_->start_reduce_scatter(gradient, dim_, sizes_);
  }

 private:
  std::optional<c10::weak_intrusive_ptr<c10::TensorImpl>> gathered_;
  int64_t version_ = 0;
};

class ReduceAndScatterBackward final : public PartNode {
 public:
  using PartNode::PartNode;
  std::string name() const override { return "OsloReduceAndScatterBackward"; }
  at::Tensor backward(at::Tensor gradient) override {
    return gather_and_copy(gradient, group_, dim_, sizes_);
  }
};

class AllToAllBackward final : public CollectiveNode {
 public:
  AllToAllBackward(GroupPtr group, const PartsAlong& split, const PartsAlong& join)
      : CollectiveNode(std::move(group)), split_(split), join_(join) {}
  std::string name() const override { return "OsloAllToAllBackward"; }
  at::Tensor backward(at::Tensor gradient) override {
    return all_to_all(gradient, group_, join_.view(), split_.view());
  }

 private:
  struct Kept {
    explicit Kept(const PartsAlong& parts)
        : dim(parts.dim), sizes(parts.sizes.begin(), parts.sizes.end()) {}
    PartsAlong view() const { return {dim, sizes}; }
    int64_t dim;
    c10::SmallVector<int64_t, 8> sizes;
  };
  Kept split_, join_;
};

}  // namespace

std::optional<uint64_t> start_in_backward(const at::Tensor& copied) {
  auto* const node = dynamic_cast<DividableNode*>(copied.grad_fn().get());
  if (node == nullptr || !overlap_pays(copied, node->group())) return std::nullopt;
  return node->divide();
}

at::Tensor copy_to(const at::Tensor& tensor, const GroupPtr& group) {
  if (checks_ranks()) check_same_on_ranks(tensor, *group, "what every rank goes on with");
  if (group->size() == 1 || !records(tensor)) return tensor;
  if (auto node = node_cast<CopyBackward>(group->shared_copies().find(tensor))) {
    return result_of(std::move(node), alias_of(tensor));
  }
  if (group->foresees_backward()) {
    const AskerScope of_gradient = AskerScope::of_gradient();
    group->count_all_reduce(tensor);
  }
  NodePtr node = make_node<CopyBackward>(group);
  group->shared_copies().remember(tensor, node);
  return record(alias_of(tensor), tensor, node);
}

at::Tensor reduce_from(at::Tensor tensor, const GroupPtr& group) {
  if (group->size() == 1) return tensor;
  const bool recorded = records(tensor);
  at::Tensor output;
  {
    const c10::AutoGradMode no_grad(false);
    if (!nobody_else_sees(tensor)) {
      output = tensor.clone(at::MemoryFormat::Contiguous);
    } else {
      output = recorded ? alias_of(tensor) : tensor;
    }
    output = group->all_reduce(std::move(output));
  }
  return recorded ? record(output, tensor, make_node<ReduceBackward>(group)) : output;
}

at::Tensor scatter_to(const at::Tensor& tensor, const GroupPtr& group, int64_t dim,
                      c10::IntArrayRef sizes) {
  if (group->size() == 1) return tensor;
  if (checks_ranks()) check_same_on_ranks(tensor, *group, "what every rank takes its part of");
  at::Tensor output;
  {
    const c10::AutoGradMode no_grad(false);
    output = own_part(tensor, *group, dim, sizes);
    if (output.is_alias_of(tensor)) output = output.clone();
  }
  if (!records(tensor)) return output;
  if (group->foresees_backward()) {
    const AskerScope of_gradient = AskerScope::of_gradient();
    group->count_all_gather(output, dim, sizes);
  }
  return record(output, tensor, make_node<ScatterBackward>(group, dim, sizes));
}

at::Tensor gather_from(const at::Tensor& tensor, const GroupPtr& group, int64_t dim,
                       c10::IntArrayRef sizes) {
  if (group->size() == 1) return tensor;
  at::Tensor output;
  {
    const c10::AutoGradMode no_grad(false);
    output = group->all_gather(tensor, dim, sizes);
  }
  return records(tensor) ? record(output, tensor, make_node<GatherBackward>(group, dim, sizes))
                         : output;
}

at::Tensor gather_and_copy(const at::Tensor& tensor, const GroupPtr& group, int64_t dim,
                           c10::IntArrayRef sizes) {
  if (group->size() == 1) return tensor;
  const bool recorded = records(tensor);
  NodeHandle<GatherAndCopyBackward> node;
  if (recorded) {
    node = node_cast<GatherAndCopyBackward>(group->shared_copies().find(tensor));
    if (node && !node->gathers(*group, dim, sizes)) node.reset();
  }
  const at::Tensor gathered = node ? node->gathered() : at::Tensor();
  if (gathered.defined()) return result_of(std::move(node), alias_of(gathered));
  at::Tensor output;
  {
    const c10::AutoGradMode no_grad(false);
    output = group->all_gather(tensor, dim, sizes);
  }
  if (!recorded) return output;
  if (node) {
    node->remember(output);
    return result_of(std::move(node), std::move(output));
  }
  if (group->foresees_backward()) {
    const AskerScope of_gradient = AskerScope::of_gradient();
    group->count_reduce_scatter(output, dim, sizes);
  }
  node = make_node<GatherAndCopyBackward>(group, dim, sizes);
  node->remember(output);
  group->shared_copies().remember(tensor, node);
  return record(output, tensor, node);
}

NodePtr gathered_by(const at::Tensor& tensor) {
  const NodePtr node = tensor.grad_fn();
  return node && node_cast<GatherAndCopyBackward>(node) ? node : NodePtr();
}

at::Tensor reduce_and_scatter(const at::Tensor& tensor, const GroupPtr& group, int64_t dim,
                              c10::IntArrayRef sizes) {
  if (group->size() == 1) return tensor;
  at::Tensor output;
  {
    const c10::AutoGradMode no_grad(false);
    output = group->reduce_scatter(tensor, dim, sizes);
  }
  if (!records(tensor)) return output;
  if (group->foresees_backward()) {
    const AskerScope of_gradient = AskerScope::of_gradient();
    group->count_all_gather(output, dim, sizes);
  }
  return record(output, tensor, make_node<ReduceAndScatterBackward>(group, dim, sizes));
}

at::Tensor all_to_all(const at::Tensor& tensor, const GroupPtr& group, const PartsAlong& split,
                      const PartsAlong& join) {
  if (group->size() == 1) return tensor;
  at::Tensor output;
  {
    const c10::AutoGradMode no_grad(false);
    output = group->all_to_all(tensor, split, join);
  }
  if (!records(tensor)) return output;
  if (group->foresees_backward()) {
    const AskerScope of_gradient = AskerScope::of_gradient();
    group->count_all_to_all(output, join, split);
  }
  return record(output, tensor, make_node<AllToAllBackward>(group, split, join));
}

}  // namespace oslo
