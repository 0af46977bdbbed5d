#pragma once

#include <torch/nn/module.h>

#include <memory>

#include "oslo_cpp/config/config.h"
#include "oslo_cpp/model/parallel_model.h"
#include "parallelizers/plan/apply/master_weights.h"

namespace oslo {

struct InitializeOptions;

/// Who goes on with a model: the program's own loop, or an engine, which does what the config says
/// of its steps (engine/engine.h).
enum class TrainedBy { program, engine };

/// `initialize` of a model that may have master weights already: then its parameters are in fp32,
/// and its author had them in `types`.
ParallelModel initialize_again(std::shared_ptr<torch::nn::Module> model, const Config& config,
                               const InitializeOptions& options, const AuthorTypes& types,
                               TrainedBy by = TrainedBy::program);

}  // namespace oslo
