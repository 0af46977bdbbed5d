#include "parallelizers/data/sharded/shard_parameters.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/grid/group_copies.h"
#include "parallelizers/data/sharded/gathered_bucket.h"
#include "parallelizers/data/sharded/host_bucket.h"
#include "parallelizers/data/zero/replica_context.h"
#include "parallelizers/deferred/content.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/layout/placement.h"
#include "parallelizers/placement/layout/sharded_weight.h"

namespace oslo {
namespace {

/// One weight of a bucket, which has those alone that are on this rank's stages.
class WeightOfBucket final : public ShardedWeight {
 public:
  /// `place`: its number among all weights of the model. `shape`: of what tensor ranks leave of it
  /// to this one, without content.
  WeightOfBucket(std::shared_ptr<ShardBucket> bucket, size_t place, at::Tensor shape,
                 LayoutPtr used)
      : bucket_(std::move(bucket)),
        place_(place),
        shape_(std::move(shape)),
        used_(std::move(used)) {}

  at::Tensor gathered() override {
    if (number_) return bucket_->whole(*number_);
    const at::Tensor parameter(parameter_.lock());
    at::Tensor whole = marked_in(shape_, parameter, used_);
    whole.set_requires_grad(parameter.requires_grad());
    return whole;
  }
  at::Tensor averaged(const at::Tensor& gradient) override {
    return bucket_->averaged(number_.value(), gradient);
  }
  void cast_made(const at::Tensor& cast, const at::Tensor& of) override {
    bucket_->cast_made(cast, of);
  }
  void count_writes_of(const at::Tensor& data) override { bucket_->count_writes_of(data); }
  std::shared_ptr<void> write(const at::Tensor& tensor) override {
    return number_ ? bucket_->write(*number_, tensor) : nullptr;
  }

  bool needs_replicas() const override { return bucket_->gathers(); }
  const LayoutPtr& used() const override { return used_; }
  void lies_in(const at::Tensor& parameter, const LayoutPtr& layout) override {
    parameter_ = c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr());
    if (used_ && used_->stages() != layout->stages()) {
      auto there = std::make_shared<Layout>(*used_);
      there->set_stages(layout->stages());
      used_ = std::move(there);
    }
    if (!layout->here()) return;
    if (!number_) number_ = bucket_->add(shape_, place_);
    bucket_->lay_weight(*number_, parameter, layout, used_);
  }

  const ShardBucket& bucket() const { return *bucket_; }

 private:
  const std::shared_ptr<ShardBucket> bucket_;
  const size_t place_;
  const at::Tensor shape_;
  LayoutPtr used_;
  c10::weak_intrusive_ptr<c10::TensorImpl> parameter_{c10::intrusive_ptr<c10::TensorImpl>()};
  std::optional<size_t> number_;
};

/// The dimension that gives the ranks nearly as much as each other: the first one, if it does;
/// where tensor ranks cut all, the first one. Sizes that no tensor axis cuts are the same on all
/// ranks.
int64_t dimension_to_cut(c10::IntArrayRef sizes, const Layout* layout, int64_t ranks) {
  constexpr double kNearly = 1.05;
  int64_t best = -1;
  double least = 0;
  for (int64_t d = 0; d < static_cast<int64_t>(sizes.size()); ++d) {
    if (layout != nullptr && layout->cuts(d)) continue;
    const int64_t most = (sizes[d] + ranks - 1) / ranks;
    const double waste = static_cast<double>(most * ranks) / static_cast<double>(sizes[d]);
    if (waste <= kNearly) return d;
    if (best < 0 || waste < least) {
      best = d;
      least = waste;
    }
  }
  return std::max<int64_t>(best, 0);
}

/// By what all ranks know: a part may be empty on some.
bool can_be_cut(const at::Tensor& parameter) {
  return parameter.dim() > 0 && c10::multiply_integers(whole_sizes(parameter)) > 0;
}

/// How the part of `parameter` lies that is `own` on this rank of the tensor axes now. `on_host`:
/// parts are stretches of memory.
LayoutPtr cut_over(const ContextPtr& context, const at::Tensor& parameter, const at::Tensor& own,
                   const LayoutPtr& used, bool on_host) {
  auto layout = std::make_shared<Layout>(context);
  const int replicas = context->replica_axis;
  for (int axis = 0; used && axis < used->axes(); ++axis) (*layout)[axis] = (*used)[axis];
  if (used) layout->set_stages(used->stages());
  if (!can_be_cut(parameter)) return layout;
  const int ranks = context->mesh().axis(replicas)->size();
  const int64_t dim = on_host ? outermost_dimension(own, whole_sizes(parameter))
                              : dimension_to_cut(own.sizes(), used.get(), ranks);
  CutPtr cut = cut_inside(layout.get(), Placement::shard(dim), own.size(dim), ranks);
  (*layout)[replicas] = {dim, std::move(cut)};
  return layout;
}

/// A parameter before it is sharded.
struct Uncut {
  NamedTensor parameter;
  at::Tensor own;  ///< what tensor ranks leave of it to this one
  LayoutPtr used, layout;
};

Uncut uncut(const NamedTensor& parameter, const ContextPtr& context, bool on_host) {
  const Mark* const mark = mark_of(parameter.tensor);
  const LayoutPtr used = mark != nullptr ? mark->layout : nullptr;
  const at::Tensor own = plain_values(parameter.tensor);
  return {parameter, own, used, cut_over(context, parameter.tensor, own, used, on_host)};
}

using UncutLayers = std::vector<std::vector<Uncut>>;

UncutLayers uncut_layers(const std::vector<ShardedLayer>& layers, const ContextPtr& context,
                         bool on_host) {
  UncutLayers of_layers;
  for (const ShardedLayer& layer : layers) {
    auto& weights = of_layers.emplace_back();
    for (const NamedTensor& parameter : layer.parameters) {
      if (!on_host && !can_be_cut(parameter.tensor)) continue;
      weights.push_back(uncut(parameter, context, on_host));
    }
  }
  return of_layers;
}

std::vector<HostWeight> host_weights(const UncutLayers& of_layers, int rank) {
  std::vector<HostWeight> all;
  for (const auto& layer : of_layers) {
    for (const Uncut& weight : layer) {
      const ShardPieces pieces(weight.own, *weight.layout);
      HostWeight on_host{weight.own.scalar_type(), pieces.sizes, pieces.strides, pieces.dim, 0, 0,
                         weight.layout->here()};
      if (on_host.is_cut()) {
        on_host.begin = pieces.begin_on(rank);
        on_host.size = pieces.cut->local_size(rank);
      }
      all.push_back(std::move(on_host));
    }
  }
  return all;
}

/// `place`: its number among all weights. `part`: memory for it; undefined where it gets some of
/// its own.
void shard(const Uncut& weight, const std::shared_ptr<ShardBucket>& bucket, size_t place,
           at::Tensor part) {
  const ContextPtr& context = weight.layout->context();
  Layout of_replica(context);  // of what tensor ranks leave
  of_replica[context->replica_axis] = (*weight.layout)[context->replica_axis];
  const at::Tensor own_part = local_part(weight.own, of_replica);
  if (part.defined() && !is_deferred(own_part)) {
    part.copy_(own_part);
  } else {  // or it gets there with its content
    part = own_part.clone(at::MemoryFormat::Contiguous);
  }
  const at::Tensor& own = weight.own;
  const auto sharded = std::make_shared<WeightOfBucket>(
      bucket, place, at::empty_strided(own.sizes(), own.strides(), own.options().device(at::kMeta)),
      weight.used);
  lay_parameter(weight.parameter.tensor, part, weight.layout, weight.parameter.name, sharded);
  sharded->lies_in(weight.parameter.tensor, weight.layout);
}

const WeightOfBucket* weight_of_bucket(const at::Tensor& parameter) {
  const Mark* const mark = parameter.defined() ? mark_of(parameter) : nullptr;
  return mark == nullptr ? nullptr : dynamic_cast<const WeightOfBucket*>(mark->sharded.get());
}

}  // namespace

std::shared_ptr<ModelContext> shard_parameters(
    const std::vector<ShardedLayer>& layers, const std::shared_ptr<Group>& replicas,
    const ContextPtr& tensor, ShardedHow how, const std::function<void(ModelContext&)>& on_stages) {
  if (replicas->size() == 1) return nullptr;
  const std::shared_ptr<ModelContext> context = replica_context(*tensor, replicas);
  if (on_stages) on_stages(*context);
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  UncutLayers of_layers = uncut_layers(layers, context, how.one_copy_on_host);
  std::shared_ptr<HostWeights> host;
  if (how.one_copy_on_host) {
    const auto take = [&] {
      host = std::make_shared<HostWeights>(replicas, host_weights(of_layers, replicas->rank()));
    };
    if (!how.had_by_all) {
      take();
    } else if (!how.had_by_all(take)) {
      host.reset();  // of a group that could have it
      of_layers = uncut_layers(layers, context, /*on_host=*/false);
    }
  }
  const auto all = std::make_shared<ShardBuckets>(host ? how.keep_casts_on_host : how.keep,
                                                  copies_of(*replicas), host);
  size_t place = 0;
  if (host) host->turns().begin_write();  // which all ranks do
  for (size_t i = 0; i < layers.size(); ++i) {
    std::shared_ptr<ShardBucket> bucket;
    if (host) {
      bucket = std::make_shared<HostBucket>(layers[i].name, i, replicas, all);
    } else {
      bucket = std::make_shared<GatheredBucket>(layers[i].name, i, replicas, all);
    }
    for (Uncut& weight : of_layers[i]) {
      const bool shares = host && host->has(place) && weight.layout->here();
      shard(weight, bucket, place, shares ? host->part(place) : at::Tensor());
      weight = {};  // what was whole goes
      ++place;
    }
    all->add(bucket, layers[i].of_layer);
  }
  if (host) host->turns().end_write();
  return context;
}

std::vector<std::shared_ptr<ShardBuckets>> buckets_of(const std::vector<at::Tensor>& parameters) {
  std::vector<std::shared_ptr<ShardBuckets>> all;
  for (const at::Tensor& parameter : parameters) {
    const WeightOfBucket* const weight = weight_of_bucket(parameter);
    if (weight == nullptr) continue;
    const auto& own = weight->bucket().all();
    if (std::find(all.begin(), all.end(), own) == all.end()) all.push_back(own);
  }
  return all;
}

}  // namespace oslo
