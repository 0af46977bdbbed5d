#include <ATen/ATen.h>

#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "mpu/base/error.h"
#include "oslo_cpp/zero/flat_memory.h"
#include "oslo_cpp/zero/state_sharing.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

constexpr char kPassAlong[] = "pass the optimizer along, as ReshardOptions().optimizer(&optimizer)";

std::string name_of(const at::Tensor& parameter) {
  const Mark* const mark = mark_of(parameter);
  return mark != nullptr ? "'" + mark->name + "'" : c10::str("of shape ", parameter.sizes());
}

}  // namespace

void StateSharing::check_replicas(const Group& now) const {
  OSLO_CHECK(shared_.empty() || now.ranks() == group_->ranks(),
             "the model has other data replicas than when ZeroOptimizer shared its states out; ",
             kPassAlong);
}

void StateSharing::check_layout(const Shared& shared) const {
  const LayoutPtr now = layout(shared.parameter);
  bool same = now == shared.layout;
  if (now && shared.layout) {
    Layout then = *shared.layout;
    then.set_stages(now->stages());  // more of them may hold it since
    same = *now == then;
  }
  const int64_t elements = std::accumulate(shared.sizes.begin(), shared.sizes.end(), int64_t(0));
  OSLO_CHECK(same && elements == shared.parameter.numel(), "the parameter ",
             name_of(shared.parameter),
             " lies otherwise than when ZeroOptimizer shared its states out; ", kPassAlong);
}

/// Each parameter has memory of its own, without gaps: of two over the same memory one rank would
/// step one and another rank the other, and what is gathered last would be all that is left.
void StateSharing::check_apart() const {
  std::map<const char*, const at::Tensor*> ends;
  for (const Shared& shared : shared_) {
    if (!shared.stepped) continue;
    const at::Tensor flat = flat_memory(shared.parameter);
    if (flat.numel() == 0) continue;
    const char* const start = static_cast<const char*>(flat.const_data_ptr());
    const char* const end = start + flat.nbytes();
    const auto next = ends.upper_bound(start);
    const bool apart = next == ends.end() ||
                       end <= static_cast<const char*>(flat_memory(*next->second).const_data_ptr());
    OSLO_CHECK(apart, "the parameters ", name_of(apart ? flat : *next->second), " and ",
               name_of(shared.parameter),
               " lie in one memory, and ZeroOptimizer would have different ranks step it; register "
               "one tensor for both (tied), or give each memory of its own (clone())");
    ends.emplace(end, &shared.parameter);
  }
}

/// What travels together has one type.
void StateSharing::check_types() const {
  for (const SharedBucket& bucket : buckets_) {
    const at::Tensor& first = any_of(bucket);
    for (const std::vector<SharedPiece>& pieces : bucket.of_rank) {
      for (const SharedPiece& piece : pieces) {
        const at::Tensor& parameter = shared_[piece.parameter].parameter;
        OSLO_CHECK(
            parameter.scalar_type() == first.scalar_type() && parameter.device() == first.device(),
            "the parameters ", name_of(first), " (", first.scalar_type(), ", ", first.device(),
            ") and ", name_of(parameter), " (", parameter.scalar_type(), ", ", parameter.device(),
            ") had one type and device when ZeroOptimizer shared them out; convert the model "
            "before the optimizer's first step");
      }
    }
  }
}

void StateSharing::check_gradient(const at::Tensor& parameter) {
  OSLO_CHECK(!parameter.grad().is_sparse(), "the gradient of the parameter ", name_of(parameter),
             " is sparse, and ZeroOptimizer shares out dense ones: make the table without sparse "
             "gradients");
}

void StateSharing::check_state(const Shared& shared, const std::string& field,
                               const at::Tensor& tensor) {
  OSLO_CHECK(tensor.sizes() == shared.parameter.sizes(), "the optimizer's ", field,
             " of the parameter ", name_of(shared.parameter), " has the shape ", tensor.sizes(),
             ": neither that of the parameter nor this rank's share, ", shared.piece.length,
             " elements");
}

}  // namespace oslo
