#include "oslo_cpp/engine/initialize_engine.h"

#include "oslo_cpp/initialize/initialize_again.h"

namespace oslo {

ParallelModel initialize_for_engine(std::shared_ptr<torch::nn::Module> model,
                                    torch::optim::Optimizer& optimizer, const Config& config,
                                    InitializeOptions options) {
  if (options.optimizer == nullptr) options.optimizer = &optimizer;
  return initialize_again(std::move(model), config, options, {}, TrainedBy::engine);
}

}  // namespace oslo
