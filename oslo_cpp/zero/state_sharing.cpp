#include "oslo_cpp/zero/state_sharing.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/base/ledger.h"
#include "oslo_cpp/zero/flat_memory.h"
#include "oslo_cpp/zero/gather_states.h"
#include "parallelizers/data/gradient_elements.h"
#include "parallelizers/libtorch/gradient_type.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

constexpr char kRule[] = "zero";

}  // namespace

/// A parameter that is stepped whole keeps its own.
void StateSharing::forget_gradient(Shared& shared) {
  if (!shared.part.defined()) return;
  if (!shared.part.is_same(shared.parameter)) {
    shared.part.mutable_grad() = at::Tensor();
  } else if (shared.exchanged.defined()) {
    shared.part.mutable_grad() = std::exchange(shared.exchanged, at::Tensor());
  }
}

/// While alive, the optimizer's groups and states are those of this rank's pieces.
class StateSharing::Swapped {
 public:
  Swapped(StateSharing& sharing, torch::optim::Optimizer& optimizer)
      : sharing_(sharing), optimizer_(optimizer) {
    States& states = optimizer.state();
    for (Shared& shared : sharing_.shared_) {
      const auto found = states.find(shared.parameter.unsafeGetTensorImpl());
      if (found == states.end()) continue;
      auto state = std::move(found->second);
      states.erase(found);
      if (shared.part.defined()) states[shared.part.unsafeGetTensorImpl()] = std::move(state);
    }
    for (torch::optim::OptimizerParamGroup& group : optimizer.param_groups()) {
      std::vector<at::Tensor> parts;
      for (const at::Tensor& parameter : group.params()) {
        const auto found = sharing_.index_.find(parameter.unsafeGetTensorImpl());
        if (found == sharing_.index_.end()) {
          parts.push_back(parameter);
        } else if (const at::Tensor& part = sharing_.shared_[found->second].part; part.defined()) {
          parts.push_back(part);
        }
      }
      whole_.push_back(std::exchange(group.params(), std::move(parts)));
    }
  }

  ~Swapped() {
    for (size_t i = 0; i < whole_.size(); ++i) {
      optimizer_.param_groups()[i].params() = std::move(whole_[i]);
    }
    States& states = optimizer_.state();
    for (Shared& shared : sharing_.shared_) {
      if (!shared.part.defined()) continue;
      forget_gradient(shared);
      const auto found = states.find(shared.part.unsafeGetTensorImpl());
      if (found == states.end()) continue;
      auto state = std::move(found->second);
      states.erase(found);
      states[shared.parameter.unsafeGetTensorImpl()] = std::move(state);
      shared.cut = true;
    }
  }
  Swapped(const Swapped&) = delete;
  Swapped& operator=(const Swapped&) = delete;

 private:
  StateSharing& sharing_;
  torch::optim::Optimizer& optimizer_;
  std::vector<std::vector<at::Tensor>> whole_;
};

StateSharing::StateSharing(ParallelModel parallel, ShareUnit unit)
    : parallel_(std::move(parallel)), unit_(unit) {}

StateSharing::~StateSharing() {
  for (const Shared& shared : shared_) {
    if (shared.gradient) share_no_gradient(shared.parameter, shared.gradient);
  }
}

void StateSharing::step(torch::optim::Optimizer& optimizer, const std::function<void()>& base) {
  const std::shared_ptr<Group>& replicas = parallel_.mpu().data_group();
  check_replicas(*replicas);
  group_ = replicas;
  if (group_->size() == 1 || keeps_parts_of_weights(optimizer.param_groups())) return base();
  const c10::AutoGradMode no_grad(false);
  const RuleScope scope(kRule);
  for (const Shared& shared : shared_) {
    if (shared.stepped) check_layout(shared);
  }
  join_relaid(optimizer);
  share_out(optimizer.param_groups());
  bucket_new();
  check_types();
  for (Shared& shared : shared_) {
    if (!shared.stepped) continue;
    lay_out(shared);
    if (!shared.cut) cut_state(shared, optimizer.state(), optimizer);
  }
  {
    const Swapped swapped(*this, optimizer);
    // A piece's state may have the mark of the whole it was loaded for. Whole tensors stay above
    // the door: what an optimizer computes of one that tensor ranks have parts of is of all of it.
    std::optional<const BelowDoor> below;
    if (unit_ == ShareUnit::rows) below.emplace();
    base();
  }
  loaded_shares_ = false;
  give();
}

void StateSharing::join_relaid(torch::optim::Optimizer& optimizer) {
  if (unit_ != ShareUnit::rows) return;  // a tensor's owner steps it however it lies
  const bool relaid = std::any_of(shared_.begin(), shared_.end(), [](const Shared& shared) {
    return shared.stepped && (shared.parameter.strides() != shared.strides ||
                              shared.parameter.scalar_type() != shared.type);
  });
  if (!relaid) return;
  const OptimizerKind& kind = kind_of(optimizer);
  const SharedStates::Whole whole = whole_states(optimizer);
  for (const Shared& shared : shared_) {
    auto* const key = shared.parameter.unsafeGetTensorImpl();
    optimizer.state().erase(key);
    const auto found = whole.find(key);
    if (found != whole.end()) optimizer.state()[key] = kind.make_state(found->second);
    if (!has_part(shared.parameter)) continue;
    at::Tensor& gradient = shared.parameter.mutable_grad();
    const LayoutPtr lies = layout(shared.parameter);
    const at::Tensor all = full_tensor(gradient).detach();
    const BelowDoor below;
    const at::Tensor own =
        lies ? marked_like(local_part(all, *lies).clone(), shared.parameter) : all.clone();
    gradient = own;
  }
  states_replaced(optimizer.param_groups());
}

/// Makes the piece anew where the parameter has other memory than before, and gives it the
/// gradient.
void StateSharing::lay_out(Shared& shared) const {
  const at::Tensor& parameter = shared.parameter;
  const BelowDoor below;
  forget_gradient(shared);  // of a step that threw
  if (parameter.grad().defined()) {
    // On ranks without a piece, too: all refuse it, and what was assigned may have to be moved.
    check_gradient(parameter);
    gradient_elements(parameter);
  }
  if (shared.piece.length == 0) return;
  if (unit_ == ShareUnit::tensors) {
    shared.part = parameter;
    if (!has_part(parameter)) return;
    const at::Tensor own = plain_values(parameter.grad()).to(gradient_type(parameter));
    shared.exchanged = parameter.grad();
    parameter.mutable_grad() = shared.layout ? marked_like(own, parameter) : own;
    return;
  }
  const at::Tensor part = flat_memory(parameter).narrow(0, shared.piece.start, shared.piece.length);
  if (!shared.part.defined() || shared.part.data_ptr() != part.data_ptr() ||
      shared.part.scalar_type() != part.scalar_type()) {
    shared.part = part;
  }
  if (parameter.grad().defined()) shared.part.mutable_grad() = gradient_of_piece(shared);
}

/// Of an exchanged gradient this rank has the piece's rows.
at::Tensor StateSharing::gradient_of_piece(const Shared& shared) const {
  const at::Tensor& parameter = shared.parameter;
  const at::Tensor flat = flat_like(parameter.grad(), parameter.strides());
  return has_part(parameter) ? flat.to(gradient_type(parameter))
                             : flat.narrow(0, shared.piece.start, shared.piece.length);
}

void StateSharing::cut_state(Shared& shared, States& states,
                             const torch::optim::Optimizer& optimizer) const {
  const auto found = states.find(shared.parameter.unsafeGetTensorImpl());
  if (found == states.end()) return;
  if (shared.piece.length == 0) {
    states.erase(found);
    return;
  }
  if (unit_ == ShareUnit::rows) {
    const OptimizerKind& kind = kind_of(optimizer);
    OptimizerKind::State parts = kind.state(*found->second);
    for (auto& [field, tensor] : parts.tensors) {
      const BelowDoor below;
      if (tensor.dim() == 1 && tensor.numel() == shared.piece.length) continue;
      check_state(shared, field, tensor);
      tensor = flat_like(tensor, shared.parameter.strides())
                   .narrow(0, shared.piece.start, shared.piece.length)
                   .clone();
    }
    found->second = kind.make_state(parts);
  }
  shared.cut = true;
}

/// Two buckets are under way at a time: while one travels, the one before is put in its place.
void StateSharing::give() const {
  const BelowDoor below;
  const auto start = [&](const SharedBucket& bucket) {
    std::vector<at::Tensor> own;
    for (const SharedPiece& piece : bucket.of_rank[group_->rank()]) {
      own.push_back(
          flat_memory(shared_[piece.parameter].parameter).narrow(0, piece.start, piece.length));
    }
    const at::Tensor part =
        !own.empty() ? at::cat(own) : at::empty({0}, plain_values(any_of(bucket)).options());
    return group_->start_all_gather(part, 0, bucket.sizes);
  };
  std::optional<Pending> next;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    Pending current = next ? std::move(*next) : start(buckets_[i]);
    next.reset();
    if (i + 1 < buckets_.size()) next = start(buckets_[i + 1]);
    put(buckets_[i], current.wait());
  }
}

const at::Tensor& StateSharing::any_of(const SharedBucket& bucket) const {
  for (const std::vector<SharedPiece>& pieces : bucket.of_rank) {
    if (!pieces.empty()) return shared_[pieces.front().parameter].parameter;
  }
  fail("a bucket without a parameter");
}

void StateSharing::put(const SharedBucket& bucket, const at::Tensor& all) const {
  int64_t start = 0;
  for (int rank = 0; rank < group_->size(); ++rank) {
    for (const SharedPiece& piece : bucket.of_rank[rank]) {
      const at::Tensor& parameter = shared_[piece.parameter].parameter;
      const at::Tensor from = all.narrow(0, start, piece.length);
      start += piece.length;
      if (rank != group_->rank()) {
        flat_memory(parameter).narrow(0, piece.start, piece.length).copy_(from);
      }
      // What was made of the old values is to be noticed (SGD of LibTorch writes past the version).
      parameter.unsafeGetTensorImpl()->bump_version();
    }
  }
}

SharedStates::Whole StateSharing::whole_states(const torch::optim::Optimizer& optimizer) const {
  OSLO_CHECK(
      !loaded_shares_ || parallel_.mpu().data_group()->size() == 1,
      "ZeroOptimizer has loaded this rank's share from an archive and has not stepped since; "
      "whole states can be had after its next step");
  const OptimizerKind& kind = kind_of(optimizer);
  SharedStates::Whole whole;
  std::vector<GatheredState> shared;
  for (const auto& [parameter, state] : optimizer.state()) {
    const auto found = index_.find(static_cast<const c10::TensorImpl*>(parameter));
    if (found == index_.end() || !shared_[found->second].cut) {
      whole[parameter] = kind.state(*state);
    }
  }
  for (const Shared& each : shared_) {
    if (!each.stepped) continue;
    GatheredState& gathered = shared.emplace_back();
    gathered.parameter = each.parameter;
    gathered.strides = each.strides;
    gathered.sizes = each.sizes;
    const auto found = optimizer.state().find(each.parameter.unsafeGetTensorImpl());
    if (each.cut && found != optimizer.state().end()) gathered.own = kind.state(*found->second);
  }
  if (group_ == nullptr || group_->size() == 1 || shared.empty()) return whole;
  const RuleScope scope(kRule);
  for (auto& [parameter, state] : gather_states(*group_, shared)) {
    whole[parameter] = std::move(state);
  }
  return whole;
}

void StateSharing::states_replaced(const Groups& groups) {
  for (const Shared& shared : shared_) {
    if (shared.gradient) share_no_gradient(shared.parameter, shared.gradient);
  }
  shared_.clear();
  index_.clear();
  buckets_.clear();
  rows_.reset();
  shares_.reset();
  loaded_shares_ = false;
  share_out(groups);
}

void StateSharing::shares_replaced(const Groups& groups) {
  states_replaced(groups);
  loaded_shares_ = true;
}

}  // namespace oslo
