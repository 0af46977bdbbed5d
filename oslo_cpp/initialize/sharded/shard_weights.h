#pragma once

#include <functional>
#include <memory>

#include "mpu/grid/mpu.h"
#include "oslo_cpp/config/config_values.h"
#include "parallelizers/modules/model_view.h"
#include "parallelizers/placement/layout/context.h"

namespace oslo {

/// Throws where keys of "zero_optimization" do not fit its stage, or these data ranks.
void check_zero_keys(const ConfigValues& values, int data_ranks);

/// Throws where the model cannot be trained with its weights shared out over data ranks
/// ("zero_optimization", stage 3) as `values` ask.
void check_shards_weights(const ModelView& model, const MPU& mpu, const ConfigValues& values);

/// Leaves each data rank its part of the model's weights: the layers of a repeated stack one by
/// one, what lies outside of them together (parallelizers/data/sharded/). With "shard_size" each
/// group of so many neighbours has the weights once. What the parts share; null where a group is
/// one rank.
std::shared_ptr<ModelContext> shard_weights(const ModelView& model, const MPU& mpu,
                                            const ConfigValues& values, const ContextPtr& context,
                                            const std::function<void(ModelContext&)>& on_stages);

/// Makes deferred weights where data ranks share them; what is deferred elsewhere stays so.
void fill_shared_weights(const ModelView& model);

}  // namespace oslo
