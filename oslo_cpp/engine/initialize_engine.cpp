#include "oslo_cpp/engine/initialize_engine.h"

#include "mpu/base/error.h"
#include "oslo_cpp/initialize/initialize_again.h"

namespace oslo {

ParallelModel initialize_for_engine(std::shared_ptr<torch::nn::Module> model,
                                    torch::optim::Optimizer& optimizer, const Config& config,
                                    InitializeOptions options) {
  const ConfigValues& values = config.values();
  OSLO_CHECK_AS(config, !values.zero_optimization || values.zero_stage == 3,
                "'zero_optimization.enabled' = true at stage ", values.zero_stage,
                ", and an engine steps the optimizer that it is given, which shares nothing out: "
                "set the stage to 3, whose weights any optimizer steps in parts, or take "
                "oslo::initialize(model, config), and oslo::ZeroOptimizer of what it returns");
  if (options.optimizer == nullptr) options.optimizer = &optimizer;
  return initialize_again(std::move(model), config, options, {}, TrainedBy::engine);
}

}  // namespace oslo
