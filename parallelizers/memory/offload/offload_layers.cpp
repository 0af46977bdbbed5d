#include "parallelizers/memory/offload/offload_layers.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>

#include "parallelizers/memory/offload/store.h"
#include "parallelizers/memory/saved_tensors.h"
#include "parallelizers/placement/carrier/local_of.h"

namespace oslo {

/// What a thread's forwards have saved since its last backward pass.
struct OffloadLayers::Forward {
  std::shared_ptr<offload::Store> store;
  std::vector<const OffloadLayers*> models;  ///< whose parameters stay
};

OffloadLayers::OffloadLayers(const std::vector<at::Tensor>& parameters,
                             const OffloadOptions& options)
    : options_(options) {
  for (const at::Tensor& parameter : parameters) {
    parameters_.emplace_back(parameter.getIntrusivePtr());
  }
}

std::vector<at::Tensor> OffloadLayers::memory() const {
  std::vector<at::Tensor> parts;
  for (const auto& parameter : parameters_) {
    auto held = parameter.lock();
    if (held) parts.push_back(local_of(at::Tensor(std::move(held))));
  }
  return parts;
}

c10::Device OffloadLayers::device() const {
  for (const auto& parameter : parameters_) {
    auto held = parameter.lock();
    if (held) return at::Tensor(std::move(held)).device();
  }
  return c10::kCPU;
}

void OffloadLayers::about_to_use(const at::Tensor& parameter, c10::ArrayRef<c10::IValue>) {
  static thread_local std::weak_ptr<Forward> going_on;
  if (parameter.is_cpu() || !c10::GradMode::is_enabled()) return;
  if (torch::autograd::get_current_graph_task_id() != -1) return;
  std::shared_ptr<Forward> forward = going_on.lock();
  if (!forward) {
    forward = std::make_shared<Forward>();
    forward->store = std::make_shared<offload::Store>(options_.at_least(), options_.ahead());
    going_on = forward;
    pack_until_backward([forward](const at::Tensor& saved) { return forward->store->pack(saved); });
  }
  auto& models = forward->models;
  if (std::find(models.begin(), models.end(), this) != models.end()) return;
  models.push_back(this);
  forward->store->stay(memory());
}

}  // namespace oslo
