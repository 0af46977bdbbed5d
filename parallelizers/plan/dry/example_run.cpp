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
      if (!buffer.in_graph && buffer.tensor.grad_fn()) buffer.tensor.detach_();
      buffer.tensor.set_data(buffer.memory);  // views of it still see it
      put_back(buffer.memory, buffer.content);
    }
  }

 private:
  void keep(const at::Tensor& buffer) {
    const at::Tensor memory = buffer.detach().alias();
    buffers_.push_back({buffer, memory, memory.clone(), buffer.grad_fn() != nullptr});
  }

  struct Buffer {
    at::Tensor tensor;
    at::Tensor memory;   ///< what it lay in, in its shape
    at::Tensor content;  ///< what was there
    bool in_graph;       ///< before
  };
  std::vector<Buffer> buffers_;
};

/// Puts the gradients of parameters back: an example may run backward.
class GradientKeeper {
 public:
  explicit GradientKeeper(const ModelView& model) {
    for (const ParameterView& parameter : model.parameters()) {
      keep(parameter.registered);
      keep(parameter.in_use());
    }
  }

  ~GradientKeeper() {
    const c10::AutoGradMode no_grad(false);
    for (Gradient& each : gradients_) {
      each.tensor.mutable_grad() = each.gradient;
      if (each.gradient.defined()) put_back(each.gradient, each.content);
    }
  }

 private:
  void keep(const at::Tensor& parameter) {
    if (!parameter.defined() || !parameter.is_leaf()) return;
    if (!known_.insert(parameter.unsafeGetTensorImpl()).second) return;
    const at::Tensor gradient = parameter.grad();
    at::Tensor content = gradient.defined() ? gradient.detach().clone() : at::Tensor();
    gradients_.push_back({parameter, gradient, std::move(content)});
  }

  struct Gradient {
    at::Tensor tensor, gradient, content;
  };
  std::set<const c10::TensorImpl*> known_;
  std::vector<Gradient> gradients_;
};

/// What asks for derivatives (`backward()`, `torch::autograd::grad`) throws where none are
/// recorded. It runs with them then, and takes the memory of a forward in training.
void run_as_it_asks(const ModelView& model, const std::function<void()>& example,
                    FirstWrites& writes) {
  try {
    return run_example(model, [&] { run_watched(model, example, writes); });
  } catch (const std::exception&) {
    writes.check();
  }
  const GradientKeeper gradients(model);
  run_example(model, [&] {
    const c10::AutoGradMode grad(true);
    run_watched(model, example, writes);
  });
}

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
    run_as_it_asks(model, example, writes);
    members.restore();
  }
  writes.check();
  return members.computed();
}

}  // namespace oslo
