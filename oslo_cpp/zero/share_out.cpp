// Who steps what, and has its gradient.
#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "oslo_cpp/initialize/initialize_stages.h"
#include "oslo_cpp/zero/state_sharing.h"
#include "parallelizers/data/replicas.h"
#include "parallelizers/data/zero/replica_context.h"
#include "parallelizers/modules/model_view.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

/// One that is frozen, too, where it has a gradient, by which the plain optimizer steps it.
bool is_stepped_here(const at::Tensor& parameter) {
  if (!parameter.defined() || !is_here(parameter)) return false;
  return parameter.requires_grad() || parameter.grad().defined();
}

}  // namespace

/// Those of other stages, too: what a parameter gets depends on those before it.
std::vector<at::Tensor> StateSharing::new_in(const Groups& groups) {
  std::vector<at::Tensor> fresh;
  std::unordered_set<const c10::TensorImpl*> seen;
  std::optional<std::vector<at::Tensor>> unused;  // registered; no step ever changes them
  for (const torch::optim::OptimizerParamGroup& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.defined() || !parameter.requires_grad()) continue;
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      if (index_.count(parameter.unsafeGetTensorImpl()) > 0) continue;
      if (!unused) unused = registered_without_use(parallel_);
      const bool used = std::none_of(unused->begin(), unused->end(), [&](const at::Tensor& each) {
        return each.is_same(parameter);
      });
      if (!used) continue;
      fresh.push_back(parameter);
    }
  }
  return fresh;
}

bool StateSharing::keeps_parts_of_weights(const Groups& groups) {
  return std::any_of(groups.begin(), groups.end(), [](const auto& group) {
    return std::any_of(group.params().begin(), group.params().end(), is_sharded);
  });
}

void StateSharing::share_out(const Groups& groups) {
  group_ = parallel_.mpu().data_group();
  if (group_->size() == 1 || keeps_parts_of_weights(groups)) return;
  const std::vector<at::Tensor> fresh = new_in(groups);
  if (fresh.empty()) return;
  if (!rows_) rows_.emplace(unit_, group_->size());
  const std::vector<SharedRows> rows = rows_->share(fresh);
  for (size_t i = 0; i < fresh.size(); ++i) add(fresh[i], rows[i]);
}

void StateSharing::add(const at::Tensor& parameter, const SharedRows& rows) {
  Shared shared{parameter,
                layout(parameter),
                {},
                parameter.scalar_type(),
                {shared_.size(), 0, 0},
                elements_of_ranks(parameter, rows, group_->size()),
                nullptr};
  for (int rank = 0; rank < group_->rank(); ++rank) shared.piece.start += shared.sizes[rank];
  shared.piece.length = shared.sizes[group_->rank()];
  share_gradient_of(shared, rows);
  index_.emplace(parameter.unsafeGetTensorImpl(), shared_.size());
  shared_.push_back(std::move(shared));
}

/// What has gaps is refused when it is stepped. Of a number every replica has the gradient.
void StateSharing::share_gradient_of(Shared& shared, const SharedRows& rows) {
  const at::Tensor& parameter = shared.parameter;
  if (rows.dim < 0 || !parameter.is_non_overlapping_and_dense()) return;
  auto gradient = std::make_shared<GradientShare>();
  gradient->layout = shared_layout(parameter, rows, context_of_shares());
  gradient->replicas = group_;
  gradient->dim = rows.dim;
  gradient->rows = rows.of_ranks(parameter.size(rows.dim), group_->size());
  if (const Mark* const mark = mark_of(parameter)) gradient->name = mark->name;
  if (gradient->name.empty()) {
    for (const NamedTensor& each : ModelView(parallel_.module()).in_use()) {
      if (each.tensor.is_same(parameter)) gradient->name = each.name;
    }
  }
  shared.gradient = gradient;
  share_gradient(parameter, gradient);
}

/// What this rank has come to hold since, at first all of it, travels in buckets of its own.
void StateSharing::bucket_new() {
  std::vector<size_t> numbers;
  std::vector<at::Tensor> fresh;
  std::vector<std::vector<int64_t>> elements;
  for (size_t i = 0; i < shared_.size(); ++i) {
    Shared& shared = shared_[i];
    if (shared.stepped || !is_stepped_here(shared.parameter)) continue;
    shared.stepped = true;
    shared.layout = layout(shared.parameter);
    shared.strides = shared.parameter.strides().vec();
    shared.type = shared.parameter.scalar_type();
    numbers.push_back(i);
    fresh.push_back(shared.parameter);
    elements.push_back(shared.sizes);
  }
  if (fresh.empty() && compared_) return;
  compare_replicas(fresh);
  for (SharedBucket& bucket : shared_buckets(fresh, elements, kBucketBytes)) {
    for (auto& pieces : bucket.of_rank) {
      for (SharedPiece& piece : pieces) piece.parameter = numbers[piece.parameter];
    }
    buckets_.push_back(std::move(bucket));
  }
}

/// Once at least, and when something is new.
void StateSharing::compare_replicas(const std::vector<at::Tensor>& fresh) {
  compared_ = true;
  std::vector<std::string> lines;
  for (const at::Tensor& parameter : fresh) {
    lines.push_back(c10::str(parameter.scalar_type(), " ", parameter.sizes(), " with strides ",
                             parameter.strides()));
  }
  check_replicas_agree(*group_, "the list of what ZeroOptimizer steps", lines);
  check_apart();
}

/// Where there are pipeline stages values over it live on them, too, so that a norm of one stage's
/// gradients is refused as it is there.
ContextPtr StateSharing::context_of_shares() {
  if (shares_) return shares_;
  const MPU& mpu = parallel_.mpu();
  const auto tensor = context_of(mpu.tensor_mesh());
  const auto context = replica_context(*tensor, group_);
  put_on_stages(*context, mpu.pipeline_group(), tensor->device(),
                pipeline_shape(parallel_.config().values()));
  shares_ = context;
  return shares_;
}

}  // namespace oslo
