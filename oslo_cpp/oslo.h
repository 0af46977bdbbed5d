#pragma once

/// Everything a program needs: model parallelism for LibTorch models as their authors wrote them,
/// and LibTorch's own umbrella, since the models, optimizers and samplers around it are LibTorch's.
/// It takes half a minute to compile: the library and its tools include what they use instead.

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "checkpoint/load/load_state.h"
#include "checkpoint/load/parallel_checkpoint.h"
#include "mpu/base/error.h"
#include "mpu/grid/mpu.h"
#include "mpu/launch/freed_memory.h"
#include "mpu/launch/local_rank_argument.h"
#include "mpu/world/local_device.h"
#include "mpu/world/world.h"
#include "oslo_cpp/config/config.h"
#include "oslo_cpp/engine/engine_schedule.h"
#include "oslo_cpp/engine/initialize_engine.h"
#include "oslo_cpp/explain/explanation.h"
#include "oslo_cpp/exported/module/exported_module.h"
#include "oslo_cpp/initialize/initialize.h"
#include "oslo_cpp/initialize/model_library.h"
#include "oslo_cpp/model/parallel_model.h"
#include "oslo_cpp/model/reshard_options.h"
#include "oslo_cpp/pretrained.h"
#include "oslo_cpp/registry/module_registry.h"
#include "oslo_cpp/registry/pipeline_model.h"
#include "oslo_cpp/scaling/grad_scaler.h"
#include "oslo_cpp/script/script_module.h"
#include "oslo_cpp/step/counted_step.h"
#include "oslo_cpp/step/pipeline_schedule.h"
#include "oslo_cpp/train_net/trained_model.h"
#include "oslo_cpp/training/training.h"
#include "oslo_cpp/verify/verify.h"
#include "oslo_cpp/zero/zero_optimizer.h"
#include "parallelizers/data/clip_grad_norm.h"
#include "parallelizers/data/counted_mean.h"
#include "parallelizers/data/distributed_data_parallel.h"
#include "parallelizers/deferred/deferred_init.h"
#include "parallelizers/layers/embedding.h"
#include "parallelizers/layers/global_tensor.h"
#include "parallelizers/layers/grid/embedding.h"
#include "parallelizers/layers/grid/layer_norm.h"
#include "parallelizers/layers/grid/linear.h"
#include "parallelizers/layers/grid/patch_embedding.h"
#include "parallelizers/layers/linear.h"
#include "parallelizers/memory/offload/offload_scope.h"
#include "parallelizers/memory/recompute/checkpoint.h"
#include "parallelizers/pipeline/schedule/order/text.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/engine/register_rule.h"
