#include "oslo_cpp/verify/recorded_run.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <map>

#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/operators/operator_watch.h"
#include "parallelizers/plan/dry/example_run.h"

namespace oslo {
namespace {

using Tensors = std::vector<at::Tensor>;

void collect_values(const c10::IValue& value, Tensors& values) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) values.push_back(detached_whole(value.toTensor()));
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) collect_values(element, values);
  } else if (value.isScalar()) {
    values.push_back(at::scalar_tensor(value.toScalar(), at::kDouble));
  }
}

/// Memory that no operator has written yet.
bool unwritten(const std::string& name) {
  return name.find("::empty") != std::string::npos ||
         name.find("::new_empty") != std::string::npos ||
         name.find("::resize_") != std::string::npos;
}

/// Runs a model and hands over every operation of its forward, in order.
Tensors watched(torch::nn::Module& model, const ModelView& view, const detail::RunModel& run,
                const std::function<void(RecordedOperation)>& seen, RoundingNoise* noise) {
  std::map<const c10::TensorImpl*, std::string> layer_of;
  for (const NamedTensor& parameter : view.in_use()) {
    const size_t dot = parameter.name.rfind('.');
    layer_of[parameter.tensor.unsafeGetTensorImpl()] =
        dot == std::string::npos ? parameter.name : parameter.name.substr(0, dot);
  }
  std::string layer;
  const auto look = [&](const c10::IValue& input) {
    if (!input.isTensor()) return;
    const auto found = layer_of.find(input.toTensor().unsafeGetTensorImpl());
    if (found != layer_of.end()) layer = found->second;
  };
  OperatorWatch watch(
      [&](const std::string& name, c10::ArrayRef<c10::IValue> inputs) {
        if (noise != nullptr) noise->enter(name, inputs);
        for (const c10::IValue& input : inputs) {
          if (input.isTensorList()) {
            for (const at::Tensor& each : input.toTensorVector()) look(each);
          } else {
            look(input);
          }
        }
      },
      [&](const std::string& name, c10::ArrayRef<c10::IValue> outputs) {
        const double left = noise != nullptr ? noise->leave(outputs) : 0;
        if (unwritten(name)) return;
        RecordedOperation operation{name, layer, {}, left};
        for (const c10::IValue& output : outputs) collect_values(output, operation.results);
        seen(std::move(operation));
      });
  Tensors outputs = run(model);
  watch.rethrow();
  return outputs;
}

/// Takes a model's gradients away and gives them back.
class GradientKeeper {
 public:
  explicit GradientKeeper(const ModelView& model) : parameters_(model.in_use()) {
    for (NamedTensor& parameter : parameters_) {
      kept_.push_back(parameter.tensor.grad());
      parameter.tensor.mutable_grad().reset();
    }
  }
  ~GradientKeeper() {
    for (size_t i = 0; i < kept_.size(); ++i) parameters_[i].tensor.mutable_grad() = kept_[i];
  }
  GradientKeeper(const GradientKeeper&) = delete;
  GradientKeeper& operator=(const GradientKeeper&) = delete;

  const std::vector<NamedTensor>& parameters() const { return parameters_; }

 private:
  std::vector<NamedTensor> parameters_;
  Tensors kept_;
};

/// Gradients of the outputs' sum under weights that are the same in both runs and alike nowhere.
void run_backward(const Tensors& outputs) {
  Tensors starts, weights;
  for (const at::Tensor& output : outputs) {
    if (!output.requires_grad()) continue;
    at::Tensor all = full_tensor(output);
    if (all.is_complex()) all = at::view_as_real(all.resolve_conj());
    const at::Tensor weight = at::arange(all.numel(), all.options().dtype(at::kDouble)).cos();
    starts.push_back((all * weight.view(all.sizes()).to(all.dtype())).sum());
  }
  for (size_t i = 1; i < starts.size(); ++i)
    starts[0] = starts[0] + starts[i].to(starts[0].dtype());
  if (!starts.empty()) starts[0].backward();
}

}  // namespace

at::Tensor detached_whole(const at::Tensor& tensor) {
  const c10::AutoGradMode no_grad(false);
  return full_tensor(tensor.detach());
}

RecordedRun run_recorded(torch::nn::Module& model, const detail::RunModel& run, bool gradients,
                         const std::function<void(RecordedOperation)>& seen, RoundingNoise* noise) {
  RecordedRun outcome;
  const auto noise_in = [&](const at::Tensor& tensor) {
    return noise != nullptr ? noise->in(tensor) : 0.0;
  };
  const ModelView view(model);
  const GradientKeeper keeper(view);
  run_example(view, [&] {
    const c10::AutoGradMode with_gradients(gradients);
    const Tensors outputs = watched(model, view, run, seen, noise);
    for (const auto& [path, buffer] : view.buffers()) {
      outcome.buffers.names.push_back(path);
      outcome.buffers.values.push_back(detached_whole(buffer).clone());
      outcome.buffers.noise.push_back(noise_in(buffer));
    }
    if (gradients) run_backward(outputs);
    for (const at::Tensor& output : outputs) {
      outcome.outputs.push_back(detached_whole(output));
      outcome.output_noise.push_back(noise_in(output));
    }
  });
  if (!gradients) return outcome;
  for (const NamedTensor& parameter : keeper.parameters()) {
    const at::Tensor& gradient = parameter.tensor.grad();
    outcome.gradients.names.push_back(parameter.name);
    outcome.gradients.values.push_back(gradient.defined() ? detached_whole(gradient) : gradient);
  }
  return outcome;
}

}  // namespace oslo
