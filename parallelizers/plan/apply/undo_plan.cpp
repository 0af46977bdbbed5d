#include "parallelizers/plan/apply/undo_plan.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/embedding.h>

#include <string>
#include <unordered_set>
#include <vector>

#include "mpu/base/error.h"
#include "mpu/world/agreement.h"
#include "parallelizers/libtorch/gradient_type.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/unmark.h"
#include "parallelizers/placement/carrier/whole_gradients.h"

namespace oslo {
namespace {

struct MarkedTensor {
  std::string name;
  at::Tensor tensor;
  bool has_gradient = false;  // on the ranks that hold it
};

/// The distinct marked tensors of a model, in the same order on every rank.
std::vector<MarkedTensor> marked_tensors(const ModelView& model) {
  std::unordered_set<const c10::TensorImpl*> seen;
  std::vector<MarkedTensor> marked;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (!tensor.defined() || mark_of(tensor) == nullptr) return;
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) marked.push_back({name, tensor});
  };
  for (const ParameterView& parameter : model.parameters()) {
    add(parameter.path, parameter.in_use());
    add(parameter.path, parameter.registered);
  }
  for (const BufferView& buffer : model.buffers()) add(buffer.path, buffer.tensor);
  return marked;
}

void check_alone(const std::vector<MarkedTensor>& marked, const KnownHolders& known) {
  for (const auto& [name, tensor, _] : marked) {
    std::vector<at::Tensor> beside;
    const auto held = known.find(tensor.unsafeGetTensorImpl());
    if (held != known.end()) beside = held->second;
    if (tensor.grad().defined()) beside.push_back(tensor.grad());
    const bool followed = mark_of(tensor)->layout->followed();
    OSLO_CHECK(
        !awaits_gradients(tensor, beside), "parameter ", name,
        " is part of an autograd graph that is still alive (an output kept from before, or a "
        "DistributedDataParallel)",
        followed ? ", or an optimizer has states of it that were not given by "
                   "ReshardOptions().optimizer(&optimizer)"
                 : "",
        "; let go of it first");
    int64_t own = 0;
    for (const at::Tensor& each : beside) own += mark_of(each) == mark_of(tensor) ? 1 : 0;
    OSLO_CHECK(
        others_with_mark_of(tensor) <= own, "something beside its gradient has a part of ", name,
        ", as the states of an optimizer that has stepped: take them along with "
        "ReshardOptions().optimizer(&optimizer), or let them go (optimizer.state().clear())");
  }
}

/// Fills in which parameters have gradients, where this rank does not hold them, too.
void exchange_gradients(std::vector<MarkedTensor>& marked, const MPU& mpu) {
  const auto count = static_cast<int64_t>(marked.size());
  at::Tensor flags = at::zeros({count}, at::kLong);
  auto* flag = flags.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) flag[i] = marked[i].tensor.grad().defined() ? 1 : 0;
  const c10::Device device = context_of(mpu.tensor_mesh())->device();
  flags = mpu.model_group()->all_reduce(flags.to(device), Reduction::max).to(at::kCPU);
  for (int64_t i = 0; i < count; ++i) {
    marked[i].has_gradient = flags.const_data_ptr<int64_t>()[i] != 0;
  }
}

/// Whether what the program computed and set as a gradient lies over the ranks, of the whole
/// parameter's sizes, and comes from the stage that the others expect it from.
bool is_placed_gradient(const at::Tensor& gradient, const at::Tensor& parameter) {
  if (!is_placed(gradient)) return false;
  const LayoutPtr lies = layout(gradient), own = layouts_of(parameter).gradient;
  return gradient.sizes() == c10::IntArrayRef(own->global_sizes(parameter.sizes())) &&
         lies->stages().first() == own->stages().first();
}

void check_gradients(const std::vector<MarkedTensor>& marked) {
  for (const auto& [name, tensor, has_gradient] : marked) {
    OSLO_CHECK(!has_gradient || !is_here(tensor) || tensor.grad().defined(), "parameter ", name,
               " has a gradient on another rank that holds it and none on this one");
    const at::Tensor& gradient = tensor.grad();
    OSLO_CHECK(
        !gradient.defined() || mark_of(gradient) != nullptr || is_placed_gradient(gradient, tensor),
        "the gradient of ", name, " is ",
        is_placed(gradient) ? "a value of another shape or pipeline stage than the parameter"
                            : "an ordinary tensor",
        ", and no part of the whole gradient; make it of the parameter or of its gradient "
        "(torch::ones_like(parameter)), or let it go (mutable_grad().reset())");
  }
}

/// A whole ordinary tensor with memory of its own; collective.
at::Tensor gathered(const at::Tensor& marked) {
  at::Tensor whole = full_tensor(marked).detach();
  if (mark_of(marked) == nullptr) return whole.clone();  // of what was set by hand nothing is known
  const bool shares = marked.has_storage() && whole.has_storage() && whole.is_alias_of(marked);
  return shares ? whole.clone() : whole;
}

/// The shape of a gradient that ranks of other stages have.
at::Tensor gradient_elsewhere(const at::Tensor& parameter) {
  const at::Tensor shape = blank_in(parameter, layouts_of(parameter).gradient);
  const BelowDoor below;
  return marked_gradient(shape.to(gradient_type(parameter)), parameter);
}

void restore_padding(const ModelView& model) {
  for (const ModuleView& entry : model.modules()) {
    auto* embedding = entry.module ? entry.module->as<torch::nn::EmbeddingImpl>() : nullptr;
    const Mark* mark = embedding != nullptr ? mark_of(embedding->weight) : nullptr;
    if (mark != nullptr && mark->padding_row >= 0)
      embedding->options.padding_idx(mark->padding_row);
  }
}

}  // namespace

void make_whole(const ModelView& model, const MPU& mpu, const KnownHolders& known) {
  const c10::AutoGradMode no_grad(false);
  std::vector<MarkedTensor> marked;
  agree_on_success(mpu.world(), "making the model whole", [&] {
    marked = marked_tensors(model);
    check_alone(marked, known);
  });
  exchange_gradients(marked, mpu);
  agree_on_success(mpu.world(), "making gradients whole", [&] { check_gradients(marked); });
  restore_padding(model);
  for (const auto& [_, tensor, has_gradient] : marked) {
    at::Tensor gradient;
    if (has_gradient) {
      const bool here = tensor.grad().defined();
      gradient = gathered(here ? tensor.grad() : gradient_elsewhere(tensor));
      tensor.mutable_grad().reset();
    }
    unmark(tensor, gathered(tensor));
    if (has_gradient) tensor.mutable_grad() = gradient;
  }
  for (const NamedTensor& parameter : model.in_use()) {
    release_gradients_of_leaf(parameter.tensor);
    // Data replicas may have rows of it each (ZeroOptimizer).
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (gradient.defined() && !gradient.is_sparse() && mark_of(gradient) != nullptr) {
      gradient = gathered(gradient);
    }
  }
}

}  // namespace oslo
