#include "parallelizers/plan/example_run.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include <mutex>
#include <set>
#include <utility>

namespace oslo {
namespace {

/// One to see what is written, one to see it written again.
constexpr int kMostTries = 3;

class BufferKeeper {
 public:
  explicit BufferKeeper(const torch::nn::Module& model) {
    for (const at::Tensor& buffer : model.buffers()) {
      buffers_.push_back({buffer, buffer.detach().alias(), buffer.detach().clone()});
    }
  }

  ~BufferKeeper() {
    const c10::AutoGradMode no_grad(false);
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
  std::vector<Buffer> buffers_;
};

}  // namespace

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

RandomStates::RandomStates(const torch::nn::Module& model) {
  for (at::Generator generator : default_generators(model)) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    states_.emplace_back(generator, generator.get_state());
  }
}

RandomStates::~RandomStates() {
  for (auto& [generator, state] : states_) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_state(state);
  }
}

void run_example(torch::nn::Module& model, const std::function<void()>& example) {
  const RandomStates random(model);
  const BufferKeeper buffers(model);
  const c10::AutoGradMode no_grad(false);
  example();
}

std::vector<MemberKeeper::Computed> try_example(torch::nn::Module& model,
                                                const std::function<void()>& example,
                                                FirstWrites& writes) {
  MemberKeeper members(model);
  for (int runs = 0; runs == 0 || (writes.open() && runs < kMostTries); ++runs) {
    run_example(model, [&] { run_watched(model, example, writes); });
    members.restore();
  }
  writes.check();
  return members.computed();
}

}  // namespace oslo
