#pragma once

#include <torch/nn/module.h>

#include <memory>

#include "oslo_cpp/config/config.h"
#include "oslo_cpp/model/parallel_model.h"
#include "parallelizers/plan/apply/master_weights.h"

namespace oslo {

struct InitializeOptions;

/// `initialize` of a model that has master weights already: its parameters are in fp32, and its
/// author had them in `types`.
ParallelModel initialize_again(std::shared_ptr<torch::nn::Module> model, const Config& config,
                               const InitializeOptions& options, const AuthorTypes& types);

}  // namespace oslo
