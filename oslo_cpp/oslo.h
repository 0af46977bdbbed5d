#pragma once

/// Everything a program needs: model parallelism for LibTorch models as their authors wrote them,
/// and LibTorch's own umbrella, since the models, optimizers and samplers around it are LibTorch's.
/// It takes half a minute to compile: the library and its tools include what they use instead.

#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "checkpoint/load_state.h"
#include "checkpoint/parallel_checkpoint.h"
#include "mpu/error.h"
#include "mpu/launch/local_device.h"
#include "mpu/mpu.h"
#include "mpu/world.h"
#include "oslo_cpp/config/config.h"
#include "oslo_cpp/exported/exported_module.h"
#include "oslo_cpp/initialize.h"
#include "oslo_cpp/model_library.h"
#include "oslo_cpp/parallel_model.h"
#include "oslo_cpp/pipeline_schedule.h"
#include "oslo_cpp/pretrained.h"
#include "oslo_cpp/reshard_options.h"
#include "oslo_cpp/script/script_module.h"
#include "oslo_cpp/verify/verify.h"
#include "parallelizers/data/clip_grad_norm.h"
#include "parallelizers/data/distributed_data_parallel.h"
#include "parallelizers/deferred/deferred_init.h"
#include "parallelizers/layers/embedding.h"
#include "parallelizers/layers/linear.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/engine/register_rule.h"
