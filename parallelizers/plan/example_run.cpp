#include "parallelizers/plan/example_run.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include <mutex>
#include <set>
#include <utility>

namespace oslo {
namespace {

std::vector<at::Generator> default_generators(const torch::nn::Module& model) {
  std::vector<at::Generator> generators{at::detail::getDefaultCPUGenerator()};
  std::set<c10::DeviceIndex> devices;
  for (const at::Tensor& parameter : model.parameters()) {
    if (parameter.is_cuda()) devices.insert(parameter.get_device());
  }
  for (const c10::DeviceIndex index : devices) {
    generators.push_back(at::globalContext().defaultGenerator({at::kCUDA, index}));
  }
  return generators;
}

class StateKeeper {
 public:
  StateKeeper(const torch::nn::Module& model, std::vector<at::Generator> generators) {
    for (const auto& each : default_generators(model)) generators.push_back(each);
    for (at::Generator& generator : generators) {
      if (!generator.defined()) continue;
      const std::lock_guard<std::mutex> lock(generator.mutex());
      random_.emplace_back(generator, generator.get_state());
    }
    for (const at::Tensor& buffer : model.buffers()) {
      buffers_.push_back({buffer, buffer.detach().alias(), buffer.detach().clone()});
    }
  }

  ~StateKeeper() {
    const c10::AutoGradMode no_grad(false);
    for (auto& [generator, state] : random_) {
      const std::lock_guard<std::mutex> lock(generator.mutex());
      generator.set_state(state);
    }
    for (Buffer& buffer : buffers_) {
      buffer.tensor.set_data(buffer.memory);  // views of it still see it
      buffer.tensor.copy_(buffer.content);
    }
  }

 private:
  struct Buffer {
    at::Tensor tensor;
    at::Tensor memory;   ///< what it lay in, in its shape
    at::Tensor content;  ///< what was there
  };
  std::vector<std::pair<at::Generator, at::Tensor>> random_;
  std::vector<Buffer> buffers_;
};

}  // namespace

void run_example(torch::nn::Module& model, const std::function<void()>& example,
                 std::vector<at::Generator> generators) {
  const StateKeeper keeper(model, std::move(generators));
  const c10::AutoGradMode no_grad(false);
  example();
}

}  // namespace oslo
