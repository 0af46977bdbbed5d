#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mpu/group/group.h"
#include "parallelizers/data/sharded/shard_buckets.h"
#include "parallelizers/modules/model_view.h"
#include "parallelizers/placement/layout/context.h"

namespace oslo {

/// Parameters that are gathered together.
struct ShardedLayer {
  std::string name;  ///< "h.0"; of what lies outside of layers: "outside of layers"
  bool of_layer = true;
  std::vector<NamedTensor> parameters = {};
};

/// How whole weights come to be.
struct ShardedHow {
  KeepGathered keep = KeepGathered::until_next;
  /// Of weights that lie on the host: what autocast makes of them.
  KeepGathered keep_casts_on_host = KeepGathered::until_next;
  /// They lie in memory that the replicas share, and none is gathered: the replicas can
  /// (HostRanks::can_share), and all weights are on the CPU. Those that are deferred lie there
  /// when they have been filled (ShardBuckets::fill).
  bool one_copy_on_host = false;
  /// Takes that memory, by `take`, on all ranks of the model, or else on none: then weights are
  /// gathered. Unset: `take` alone, which throws the same on all replicas.
  std::function<bool(const std::function<void()>& take)> had_by_all = {};
};

/// Leaves each of the `replicas` a part of these parameters: along one dimension, which no tensor
/// axis cuts where there is one. Parameters of no dimensions, or of no elements, stay as they are;
/// with one copy a host each replica has all of them, whose gradients are averaged with the others.
/// Other groups may have the same parts (mpu/grid/group_copies.h), whose gradients backward passes
/// then average. The values of all replicas are those of the first; collective over them, but for
/// parameters whose content is still to come (deferred). `tensor`: what the model's values share;
/// `on_stages`: puts what the parts share on pipeline stages, where there are such. Returns what
/// the parts share; null, with nothing done, where there is one replica.
std::shared_ptr<ModelContext> shard_parameters(
    const std::vector<ShardedLayer>& layers, const std::shared_ptr<Group>& replicas,
    const ContextPtr& tensor, ShardedHow how,
    const std::function<void(ModelContext&)>& on_stages = {});

/// The buckets of the parameters among these that replicas keep parts of; each model's once.
std::vector<std::shared_ptr<ShardBuckets>> buckets_of(const std::vector<at::Tensor>& parameters);

}  // namespace oslo
