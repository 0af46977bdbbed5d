#include "parallelizers/plan/example_run.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

namespace oslo {
namespace {

class StateKeeper {
 public:
  explicit StateKeeper(torch::nn::Module& model) : model_(model) {
    auto generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    random_ = generator.get_state();
    for (const at::Tensor& buffer : model.buffers()) buffers_.push_back(buffer.clone());
  }

  ~StateKeeper() {
    auto generator = at::detail::getDefaultCPUGenerator();
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(random_);
    const auto buffers = model_.buffers();
    for (size_t i = 0; i < buffers.size(); ++i) {
      at::Tensor buffer = buffers[i];
      buffer.set_data(buffers_[i]);
    }
  }

 private:
  torch::nn::Module& model_;
  at::Tensor random_;
  std::vector<at::Tensor> buffers_;
};

}  // namespace

void run_example(torch::nn::Module& model, const std::function<void()>& example) {
  const StateKeeper keeper(model);
  const c10::AutoGradMode no_grad(false);
  example();
}

}  // namespace oslo
