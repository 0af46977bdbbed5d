#include "oslo_cpp/zero/shard_weights.h"

#include <string>
#include <utility>
#include <vector>

#include "mpu/base/error.h"
#include "oslo_cpp/config/config_dialects.h"
#include "oslo_cpp/initialize/initialize_stages.h"
#include "parallelizers/data/sharded/shard_parameters.h"
#include "parallelizers/modules/path_components.h"
#include "parallelizers/stages/model_layers.h"

namespace oslo {

void check_shards_weights(const ModelView& model, const ConfigValues& values) {
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
                                            const ConfigValues& values, const ContextPtr& context) {
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
  const KeepGathered keep = values.zero_reshard.value_or(!in_stages) ? KeepGathered::until_next
                            : in_stages                              ? KeepGathered::until_written
                                                                     : KeepGathered::until_backward;
  return shard_parameters(layers, mpu.group("data"), context, keep, [&](ModelContext& shared) {
    put_on_stages(shared, mpu.pipeline_group(), context->device(), pipeline_shape(values));
  });
}

}  // namespace oslo
