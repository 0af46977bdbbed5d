#include "parallelizers/plan/dry/example_run.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/GradMode.h>

#include <set>
#include <utility>

#include "mpu/grid/random_states.h"
#include "parallelizers/modules/unsaved_buffers.h"

namespace oslo {
namespace {

/// One to see what is written, one to see it written again.
constexpr int kMostTries = 3;

class BufferKeeper {
 public:
  explicit BufferKeeper(const ModelView& model) {
    for (const auto& [_, buffer] : model.buffers()) keep(buffer);
    for (const at::Tensor& buffer : unsaved_buffers(model)) keep(buffer);
  }

  ~BufferKeeper() {
    const c10::AutoGradMode no_grad(false);
    for (Buffer& buffer : buffers_) {
      buffer.tensor.set_data(buffer.memory);  // views of it still see it
      put_back(buffer.memory, buffer.content);
    }
  }

 private:
  void keep(const at::Tensor& buffer) {
    const at::Tensor memory = buffer.detach().alias();
    buffers_.push_back({buffer, memory, memory.clone()});
  }

  struct Buffer {
    at::Tensor tensor;
    at::Tensor memory;   ///< what it lay in, in its shape
    at::Tensor content;  ///< what was there
  };
  std::vector<Buffer> buffers_;
};

}  // namespace

std::vector<at::Generator> default_generators(const ModelView& model) {
  std::vector<at::Generator> generators{at::detail::getDefaultCPUGenerator()};
  std::set<c10::DeviceIndex> devices;
  for (const ParameterView& parameter : model.parameters()) {
    const at::Tensor& tensor = parameter.registered;
    if (tensor.is_cuda()) devices.insert(tensor.get_device());
  }
  for (const c10::DeviceIndex index : devices) {
    generators.push_back(at::globalContext().defaultGenerator({at::kCUDA, index}));
  }
  return generators;
}

void run_example(const ModelView& model, const std::function<void()>& example) {
  const RandomStates random(default_generators(model));
  const BufferKeeper buffers(model);
  const c10::AutoGradMode no_grad(false);
  example();
}

std::vector<MemberKeeper::Computed> try_example(const ModelView& model,
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
