#include "parallelizers/data/sharded/host_bucket.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <string>
#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/data/exchange/travel_type.h"
#include "parallelizers/data/sharded/written_counts.h"
#include "parallelizers/deferred/content.h"
#include "parallelizers/deferred/fill.h"
#include "parallelizers/libtorch/gradient_type.h"
#include "parallelizers/libtorch/graph_pass.h"
#include "parallelizers/libtorch/live_hooks.h"
#include "parallelizers/placement/carrier/local_of.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"

namespace oslo {

/// While a weight is written.
class HostBucket::Write {
 public:
  Write(std::shared_ptr<HostBucket> bucket, size_t number, const at::Tensor& parameter)
      : bucket_(std::move(bucket)),
        number_(number),
        parameter_(parameter),
        version_(version_of(*parameter.unsafeGetTensorImpl())) {
    bucket_->host_->turns().begin_write();
    bucket_->host_->deposits().tidy();
  }
  ~Write() {
    c10::TensorImpl& impl = *parameter_.unsafeGetTensorImpl();
    // Of `p.data()`, which counts apart: a graph that has read the weight is to know.
    if (version_of(impl) == version_ && !impl.is_inference()) impl.bump_version();
    bucket_->weights_[number_].version = version_of(impl);
    bucket_->host_->turns().end_write();
  }
  Write(const Write&) = delete;
  Write& operator=(const Write&) = delete;

 private:
  const std::shared_ptr<HostBucket> bucket_;
  const size_t number_;
  const at::Tensor parameter_;
  const uint32_t version_;
};

class HostBucket::Gradient final : public Deposits::Owner {
 public:
  Gradient(std::weak_ptr<HostBucket> bucket, size_t number)
      : bucket_(std::move(bucket)), number_(number) {}
  Types types() const override {
    const auto bucket = bucket_.lock();
    if (!bucket) return {at::kFloat, at::kFloat};
    const at::ScalarType type = gradient_type(bucket->parts()[number_]);
    return {type, travel_type(*bucket->replicas_, type)};
  }
  void take(const at::Tensor& average) override {
    if (const auto bucket = bucket_.lock()) bucket->take_average(number_, average);
  }

 private:
  const std::weak_ptr<HostBucket> bucket_;
  const size_t number_;
};

void HostBucket::lay_weight(size_t number, const at::Tensor& parameter, const LayoutPtr& layout,
                            LayoutPtr used) {
  ShardBucket::lay_weight(number, parameter, layout, std::move(used));
  const size_t place = weights_[number].place;
  wholes_.resize(weights_.size());
  if (host_->has(place)) wholes_[number] = host_->whole(place);
  weights_[number].version = version_of(*parameter.unsafeGetTensorImpl());
  const auto own = std::static_pointer_cast<HostBucket>(shared_from_this());
  host_->deposits().set_owner(place, std::make_shared<Gradient>(own, number));
  if (!host_->has(place) || is_deferred(parameter) || host_->holds(parameter)) return;
  // It comes from another pipeline stage, to all replicas of this one.
  host_->turns().begin_write();
  host_->make_room(place);
  move_in(number, parameter);
  host_->turns().end_write();
}

/// Each replica its part.
void HostBucket::move_in(size_t number, const at::Tensor& parameter) {
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  Weight& weight = weights_[number];
  const at::Tensor part = host_->part(weight.place);
  part.copy_(unmarked_alias(parameter));
  const Mark& mark = *mark_of(parameter);
  lay_parameter(parameter, part, weight.layout, std::string(mark.name), mark.sharded);
  weight.version = version_of(*parameter.unsafeGetTensorImpl());
}

/// One by one, so that a rank has memory for one part beside those that are shared.
void HostBucket::fill() {
  const c10::AutoGradMode no_grad(false);
  const std::vector<at::Tensor> parts = this->parts();
  const auto deferred = [](const at::Tensor& part) { return is_deferred(part); };
  if (std::none_of(parts.begin(), parts.end(), deferred)) return;
  host_->turns().begin_write();
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!is_deferred(parts[i])) continue;
    oslo::fill(parts[i]);
    if (host_->has(weights_[i].place)) move_in(i, parts[i]);
  }
  host_->turns().end_write();
}

std::shared_ptr<void> HostBucket::write(size_t number, const at::Tensor& tensor) {
  if (!host_->holds(tensor)) return nullptr;
  auto impl = weights_[number].parameter.lock();
  if (!impl) return nullptr;
  return std::make_shared<Write>(std::static_pointer_cast<HostBucket>(shared_from_this()), number,
                                 at::Tensor(std::move(impl)));
}

void HostBucket::bring(const std::vector<at::Tensor>& parts) {
  host_->turns().read();
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!host_->has(weights_[i].place)) {
      wholes_[i] = unmarked_alias(parts[i]);
      weights_[i].version = version_of(*parts[i].unsafeGetTensorImpl());
      continue;
    }
    OSLO_CHECK(
        host_->holds(parts[i]), "weight ", mark_of(parts[i])->name,
        ", whose memory data replicas share on this host (\"copies_per_host\": 1), was given "
        "other memory (module.to, set_data); convert the model before initialize, or set "
        "\"copies_per_host\" to 0");
    OSLO_CHECK(version_of(*parts[i].unsafeGetTensorImpl()) == weights_[i].version, "weight ",
               mark_of(parts[i])->name,
               ", whose memory data replicas share on this host (\"copies_per_host\": 1), was "
               "written where that is not seen (oslo::local_tensor(p), or a view of a whole "
               "weight); write to the parameter itself, or set \"copies_per_host\" to 0");
  }
}

/// The parameter's writes are those of the whole weight.
at::Tensor HostBucket::alias_of_whole(size_t number, const at::Tensor& part) const {
  return alias_counted_by(wholes_[number], part);
}

/// Whether somebody sees gradients of these parts within the pass: hooks on a weight are called
/// with the average.
bool HostBucket::are_awaited(const std::vector<at::Tensor>& parts) const {
  return pass_hands_gradients_out() || all_->copies().are_seen(parts) ||
         std::any_of(parts.begin(), parts.end(), [](const at::Tensor& part) {
           return part.requires_grad() && has_live_hooks(part);
         });
}

bool HostBucket::take_gradient(size_t number, const at::Tensor& gradient) {
  if (are_awaited({parts()[number]})) return false;
  host_->deposits().leave(weights_[number].place, gradient);
  all_->gradients_come();
  return true;
}

bool HostBucket::take_gradients(const std::vector<at::Tensor>& parts,
                                const std::vector<at::Tensor>& gradients) {
  if (are_awaited(parts)) return false;
  host_->deposits().reached();
  for (size_t i = 0; i < weights_.size(); ++i) {
    if (!weights_[i].trained || !gradients[i].defined()) continue;
    host_->deposits().leave(weights_[i].place,
                            local_of(gradients[i]).expand(weights_[i].pieces->sizes));
  }
  all_->gradients_come();
  return true;
}

/// At the end of a backward pass.
void HostBucket::take_average(size_t number, const at::Tensor& average) {
  auto impl = weights_[number].parameter.lock();
  if (!impl) return;
  const at::Tensor parameter(std::move(impl));
  if (!parameter.requires_grad()) return;
  keep_accumulator(parameter, *mark_of(parameter));
  const auto edge = torch::autograd::impl::gradient_edge(parameter);
  (*edge.function)({wrap_placed({alias_counted_by(average, average), weights_[number].layout})});
}

}  // namespace oslo
