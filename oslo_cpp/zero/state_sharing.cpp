#include "oslo_cpp/zero/state_sharing.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "checkpoint/state/model_state.h"
#include "mpu/base/error.h"
#include "mpu/base/ledger.h"
#include "oslo_cpp/zero/flat_memory.h"
#include "oslo_cpp/zero/gather_states.h"
#include "parallelizers/data/gradient_elements.h"
#include "parallelizers/data/replicas.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

constexpr char kRule[] = "zero";

bool is_trained_here(const at::Tensor& parameter) {
  return parameter.defined() && parameter.requires_grad() && is_here(parameter);
}

}  // namespace

/// A parameter that is stepped whole keeps its own.
void StateSharing::forget_gradient(Shared& shared) {
  if (!shared.part.defined() || shared.part.is_same(shared.parameter)) return;
  shared.part.mutable_grad() = at::Tensor();
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

namespace {

/// Then their states are parts already (stage 3), and what is whole has a gradient on all replicas.
bool keep_parts_of_weights(const StateSharing::Groups& groups) {
  return std::any_of(groups.begin(), groups.end(), [](const auto& group) {
    return std::any_of(group.params().begin(), group.params().end(), is_sharded);
  });
}

}  // namespace

StateSharing::StateSharing(ParallelModel parallel, ShareUnit unit)
    : parallel_(std::move(parallel)), unit_(unit) {}

void StateSharing::step(torch::optim::Optimizer& optimizer, const std::function<void()>& base) {
  const std::shared_ptr<Group>& replicas = parallel_.mpu().data_group();
  check_replicas(*replicas);
  group_ = replicas;
  if (group_->size() == 1 || keep_parts_of_weights(optimizer.param_groups())) return base();
  const c10::AutoGradMode no_grad(false);
  const RuleScope scope(kRule);
  for (const Shared& shared : shared_) check_layout(shared);
  join_relaid(optimizer);
  share_out_new(optimizer.param_groups());
  check_types();
  for (Shared& shared : shared_) {
    lay_out(shared);
    if (!shared.cut) cut_state(shared, optimizer.state(), optimizer);
  }
  {
    const Swapped swapped(*this, optimizer);
    // A piece's state may have the mark of the whole it was loaded for. Whole tensors stay above
    // the door: what an optimizer computes of one that tensor ranks have parts of is of all of it.
    std::optional<const BelowDoor> below;
    if (unit_ == ShareUnit::elements) below.emplace();
    base();
  }
  loaded_shares_ = false;
  give();
}

void StateSharing::join_relaid(torch::optim::Optimizer& optimizer) {
  if (unit_ != ShareUnit::elements) return;  // a tensor's owner steps it however it lies
  const bool relaid = std::any_of(shared_.begin(), shared_.end(), [](const Shared& shared) {
    return shared.parameter.strides() != shared.strides ||
           shared.parameter.scalar_type() != shared.type;
  });
  if (!relaid) return;
  const OptimizerKind& kind = kind_of(optimizer);
  const SharedStates::Whole whole = whole_states(optimizer);
  for (const Shared& shared : shared_) {
    auto* const key = shared.parameter.unsafeGetTensorImpl();
    optimizer.state().erase(key);
    const auto found = whole.find(key);
    if (found != whole.end()) optimizer.state()[key] = kind.make_state(found->second);
  }
  states_replaced();
}

void StateSharing::share_out_new(const Groups& groups) {
  std::vector<at::Tensor> fresh;
  std::unordered_map<const c10::TensorImpl*, size_t> index;
  std::optional<std::vector<at::Tensor>> unused;  // registered; no step ever changes them
  for (const torch::optim::OptimizerParamGroup& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      const auto* const key = parameter.unsafeGetTensorImpl();
      if (!is_trained_here(parameter) || index_.count(key) > 0 || index.count(key) > 0) continue;
      if (!unused) unused = registered_without_use(parallel_);
      const bool used = std::none_of(unused->begin(), unused->end(), [&](const at::Tensor& each) {
        return each.is_same(parameter);
      });
      if (!used) continue;
      index.emplace(key, fresh.size());
      fresh.push_back(parameter);
    }
  }
  if (fresh.empty() && compared_) return;
  compared_ = true;
  std::vector<std::string> lines;
  for (const at::Tensor& parameter : fresh) {
    lines.push_back(c10::str(parameter.scalar_type(), " ", parameter.sizes(), " with strides ",
                             parameter.strides()));
  }
  check_replicas_agree(*group_, "the list of what ZeroOptimizer steps", lines);
  const size_t before = shared_.size();
  for (const at::Tensor& parameter : fresh) {
    index_.emplace(parameter.unsafeGetTensorImpl(), shared_.size());
    shared_.push_back({parameter,
                       layout(parameter),
                       parameter.strides().vec(),
                       parameter.scalar_type(),
                       {shared_.size(), 0, 0},
                       std::vector<int64_t>(group_->size(), 0)});
  }
  check_apart();
  for (SharedBucket& bucket : share_out(fresh, group_->size(), unit_, kBucketBytes)) {
    for (int rank = 0; rank < group_->size(); ++rank) {
      for (SharedPiece& piece : bucket.of_rank[rank]) {
        piece.parameter += before;
        Shared& shared = shared_[piece.parameter];
        shared.sizes[rank] = piece.length;
        if (rank == group_->rank()) shared.piece = piece;
      }
    }
    const bool empty = std::all_of(bucket.sizes.begin(), bucket.sizes.end(),
                                   [](int64_t size) { return size == 0; });
    if (!empty) buckets_.push_back(std::move(bucket));
  }
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
    return;
  }
  const auto piece_of = [&](const at::Tensor& values) {
    return values.narrow(0, shared.piece.start, shared.piece.length);
  };
  const at::Tensor part = piece_of(flat_memory(parameter));
  if (!shared.part.defined() || shared.part.data_ptr() != part.data_ptr() ||
      shared.part.scalar_type() != part.scalar_type()) {
    shared.part = part;
  }
  if (!parameter.grad().defined()) return;
  shared.part.mutable_grad() = piece_of(flat_like(parameter.grad(), parameter.strides()));
}

void StateSharing::cut_state(Shared& shared, States& states,
                             const torch::optim::Optimizer& optimizer) const {
  const auto found = states.find(shared.parameter.unsafeGetTensorImpl());
  if (found == states.end()) return;
  if (shared.piece.length == 0) {
    states.erase(found);
    return;
  }
  if (unit_ == ShareUnit::elements) {
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

void StateSharing::states_replaced() {
  shared_.clear();
  index_.clear();
  buckets_.clear();
  loaded_shares_ = false;
}

void StateSharing::shares_replaced() {
  states_replaced();
  loaded_shares_ = true;
}

}  // namespace oslo
