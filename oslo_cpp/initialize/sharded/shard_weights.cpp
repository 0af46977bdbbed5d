#include "oslo_cpp/initialize/sharded/shard_weights.h"

#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "mpu/base/error.h"
#include "mpu/grid/group_copies.h"
#include "mpu/world/agreement.h"
#include "oslo_cpp/config/precision_of.h"
#include "parallelizers/data/replicas.h"
#include "parallelizers/data/sharded/host/host_ranks.h"
#include "parallelizers/data/sharded/shard_parameters.h"
#include "parallelizers/deferred/content.h"
#include "parallelizers/layers/embedding.h"
#include "parallelizers/modules/path_components.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/stages/model_layers.h"

namespace oslo {

namespace {

/// Replicas may have drawn other values. What is deferred is made alike.
void take_from_first(const std::vector<ShardedLayer>& layers, Group& replicas) {
  if (replicas.size() == 1) return;
  std::vector<at::Tensor> known;
  for (const ShardedLayer& layer : layers) {
    for (const NamedTensor& parameter : layer.parameters) {
      OSLO_CHECK(!parameter.tensor.grad().defined(), "parameter ", parameter.name,
                 " has a gradient before initialize, which zero_optimization of stage 3 has no "
                 "part of; call zero_grad() first");
      const bool here = is_here(parameter.tensor);
      if (here && !is_deferred(parameter.tensor)) known.push_back(parameter.tensor);
    }
  }
  broadcast_from_first(replicas, known);
}

}  // namespace

void check_zero_keys(const ConfigValues& values, int data_ranks) {
  if (!values.zero_optimization) return;
  const bool shards = values.zero_stage == 3;
  OSLO_CHECK_AS(config, shards || !values.zero_reshard, "'zero_optimization.reshard' beside stage ",
                values.zero_stage,
                ", which gathers no weights; leave it out, or set the stage to 3");
  OSLO_CHECK_AS(config, shards || !values.zero_copies_per_host,
                "'zero_optimization.copies_per_host' beside stage ", values.zero_stage,
                ", which keeps whole weights; leave it out, or set the stage to 3");
  if (!values.zero_shard_size) return;
  OSLO_CHECK_AS(config, shards, "'zero_optimization.shard_size' beside stage ", values.zero_stage,
                ", which shares out over all data ranks; leave it out, or set the stage to 3");
  const int size = *values.zero_shard_size;
  OSLO_CHECK_AS(config, data_ranks % size == 0, "'zero_optimization.shard_size' = ", size,
                " does not divide the ", data_ranks,
                " data ranks, which are to be groups of so many; leave it out for one group, or "
                "take a size that does");
}

namespace {

/// The data ranks that have the weights once.
const std::shared_ptr<Group>& shard_group(const MPU& mpu, const ConfigValues& values) {
  const std::shared_ptr<Group>& data = mpu.group("data");
  const int shards = values.zero_shard_size.value_or(data->size());
  return shards > 1 && shards < data->size() ? mpu.group("data_shards") : data;
}

/// Why these data ranks cannot share one copy of the weights a host; empty where they can.
std::string against_one_copy(const ModelView& model, const MPU& mpu, const ConfigValues& values) {
  Group& shards = *shard_group(mpu, values);
  if (shards.size() == 1 || values.zero_shard_size == 1) return "";
  if (!HostRanks::can_share(shards)) {
    return c10::str(": data ranks ", shards.ranks(),
                    " do not go over shared memory (they are on several hosts, or the backend is "
                    "another)");
  }
  for (const NamedTensor& parameter : model.in_use()) {
    if (!parameter.tensor.device().is_cpu()) {
      return c10::str(": ", parameter.name, " is on ", parameter.tensor.device(),
                      ", and memory is shared on the CPU");
    }
  }
  return "";
}

/// Whether they do: as the config says, else where all of them can. Collective over the world.
bool keep_one_copy(const ModelView& model, const MPU& mpu, const ConfigValues& values) {
  if (values.zero_copies_per_host) return *values.zero_copies_per_host == 1;
  const bool can = against_one_copy(model, mpu, values).empty();
  const auto all = mpu.world().exchange("copies of the weights a host", can ? "one" : "none");
  return std::find(all.begin(), all.end(), "none") == all.end();
}

/// Takes memory for one copy of the weights on all ranks, or says why it cannot be had.
bool had_by_all(const World& world, const ConfigValues& values, const std::function<void()>& take) {
  std::string why;
  try {
    agree_on_success(world, "memory for one copy of the weights a host", take);
    return true;
  } catch (const Error& error) {
    if (kind_of(error) == ErrorKind::peer) throw;
    why = error.what();
  }
  OSLO_CHECK_AS(config, values.zero_copies_per_host != 1,
                "'zero_optimization.copies_per_host' = 1: ", why, "; set it to 0");
  if (world.rank() == 0) {
    std::cerr << "oslo: data ranks gather their weights (zero_optimization, stage 3), since memory "
                 "for one copy of them on this host cannot be had: "
              << why << std::endl;
  }
  return false;
}

}  // namespace

void check_shards_weights(const ModelView& model, const MPU& mpu, const ConfigValues& values) {
  if (values.zero_copies_per_host == 1) {
    const std::string against = against_one_copy(model, mpu, values);
    OSLO_CHECK_AS(config, against.empty(), "'zero_optimization.copies_per_host' = 1", against,
                  "; set it to 0");
  }
  if (!values.master_weights) return;
  for (const NamedTensor& parameter : model.in_use()) {
    OSLO_CHECK_AS(
        config,
        parameter.tensor.scalar_type() != at::kHalf &&
            parameter.tensor.scalar_type() != at::kBFloat16,
        "'zero_optimization.stage' = 3 beside \"master_weights\" of a model in half: ",
        parameter.name, " is ", parameter.tensor.scalar_type(),
        "; keep the model in fp32 and let \"amp\" compute in half, or set the stage to 1");
  }
}

std::shared_ptr<ModelContext> shard_weights(const ModelView& model, const MPU& mpu,
                                            const ConfigValues& values, const ContextPtr& context,
                                            const std::function<void(ModelContext&)>& on_stages) {
  std::vector<ShardedLayer> layers;
  for (const std::string& path : pipeline_layers(model)) layers.push_back({path});
  ShardedLayer outside{"what lies outside of layers", false};
  for (const NamedTensor& parameter : model.in_use()) {
    if (parameter.computed) continue;
    ShardedLayer* its = &outside;
    for (ShardedLayer& layer : layers) {
      if (lies_in(parameter.name, layer.name)) its = &layer;
    }
    its->parameters.push_back(parameter);
  }
  layers.push_back(std::move(outside));
  const bool in_stages = mpu.size("pipeline") > 1;
  if (values.zero_shard_size == 1) return nullptr;
  take_from_first(layers, *mpu.group("data"));
  const std::shared_ptr<Group>& group = shard_group(mpu, values);
  if (group->size() < mpu.size("data")) {
    set_travel_type(*group, context->precision);
    set_travel_type(*copies_of(*group), context->precision);
  }
  ShardedHow how;
  how.keep = values.zero_reshard.value_or(!in_stages) ? KeepGathered::until_next
             : in_stages                              ? KeepGathered::until_written
                                                      : KeepGathered::until_backward;
  how.keep_casts_on_host = in_stages ? KeepGathered::until_written : KeepGathered::until_next;
  how.one_copy_on_host = keep_one_copy(model, mpu, values);
  how.had_by_all = [&](const auto& take) { return had_by_all(mpu.world(), values, take); };
  auto shared = shard_parameters(layers, group, context, how, on_stages);
  for (const ModuleView& entry : model.modules()) {
    auto* const table = entry.module ? entry.module->as<torch::nn::EmbeddingImpl>() : nullptr;
    if (table != nullptr) nn::move_padding_to_mark(*table);
  }
  return shared;
}

void fill_shared_weights(const ModelView& model) {
  std::vector<at::Tensor> parameters;
  for (const NamedTensor& parameter : model.in_use()) parameters.push_back(parameter.tensor);
  for (const auto& buckets : buckets_of(parameters)) buckets->fill();
}

}  // namespace oslo
