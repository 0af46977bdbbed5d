#include "oslo_cpp/engine/initialize_engine.h"

#include "mpu/base/error.h"
#include "oslo_cpp/initialize/initialize_again.h"

namespace oslo {

ParallelModel initialize_for_engine(std::shared_ptr<torch::nn::Module> model,
                                    torch::optim::Optimizer& optimizer, const Config& config,
                                    InitializeOptions options) {
  OSLO_CHECK_AS(config, !config.values().zero_optimization,
                "'zero_optimization.enabled' = true, and an engine steps the optimizer that it is "
                "given, which shares nothing out: set it to false, or take oslo::initialize(model, "
                "config), and oslo::ZeroOptimizer of what it returns");
  if (options.optimizer == nullptr) options.optimizer = &optimizer;
  return initialize_again(std::move(model), config, options, {}, TrainedBy::engine);
}

}  // namespace oslo
