#include "parallelizers/plan/apply/apply_plan.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <set>
#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/deferred/content.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/whole_gradients.h"
#include "parallelizers/placement/layout/layout.h"
#include "parallelizers/plan/layers/planned_uses.h"

namespace oslo {
namespace {

/// Gradients and states are no values of a forward.
void lay_without_following(const at::Tensor& parameter) {
  auto layout = std::make_shared<Layout>(*mark_of(parameter)->layout);
  layout->set_followed(false);
  set_layouts(parameter, layout, layout);
}

/// `even_whole`: what nothing cuts is marked, too, so that its uses are met.
void cut(const at::Tensor& parameter, const std::vector<Placement>& placements,
         const std::string& name, const ContextPtr& context, StageSet stages,
         bool even_whole = false) {
  if (mark_of(parameter) != nullptr) return;  // tied to an earlier layer
  Layout layout = make_layout(context, placements, parameter.sizes());
  layout.set_stages(stages);
  const bool follows = context->follows();
  layout.set_followed(follows);
  if (layout.whole() && stages.empty() && !even_whole && !follows) return;
  const auto origin = std::make_shared<CutOrigin>(CutOrigin{name});
  for (int axis = 0; axis < layout.axes(); ++axis) {
    if (layout[axis].whole()) continue;
    const CutPtr cut = layout[axis].cut;
    layout[axis].cut = std::make_shared<Cut>(cut->runs(), origin)->among(cut->family());
  }
  const auto shared = std::make_shared<Layout>(std::move(layout));
  const at::Tensor gradient = parameter.grad();
  mark_parameter(parameter, shared, name);
  if (follows) lay_without_following(parameter);
  if (!shared->here()) {
    parameter.mutable_grad().reset();
  } else if (gradient.defined()) {  // goes on accumulating, as this rank's part
    parameter.mutable_grad() = marked_gradient(
        local_part(gradient.detach(), *shared).clone(at::MemoryFormat::Contiguous), parameter);
  }
}

/// The bytes of a memory from a tensor's first element to its last.
struct Extent {
  const void* memory = nullptr;  ///< null: it has none
  int64_t begin = 0, end = 0;

  bool overlaps(const Extent& other) const {
    return memory != nullptr && memory == other.memory && begin < other.end && other.begin < end;
  }
};

/// A deferred tensor's memory is still to come: its storage stands for it.
Extent extent_of(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided || !tensor.has_storage() || tensor.numel() == 0 ||
      tensor.is_meta()) {
    return {};
  }
  const auto element = static_cast<int64_t>(tensor.element_size());
  int64_t elements = 1;
  for (int64_t d = 0; d < tensor.dim(); ++d) elements += (tensor.size(d) - 1) * tensor.stride(d);
  const auto* storage = tensor.storage().unsafeGetStorageImpl();
  const bool deferred = is_deferred(tensor);
  // Two storages may lie over one memory: addresses tell.
  static constexpr char kAllMemory = 0;
  const int64_t begin = deferred ? tensor.storage_offset() * element
                                 : reinterpret_cast<int64_t>(tensor.const_data_ptr());
  const void* memory = deferred ? static_cast<const void*>(storage) : &kAllMemory;
  return {memory, begin, begin + elements * element};
}

/// Throws where a parameter that gets memory of its own, as it is `changed` ("cutting"), shares
/// what it has with another of `all`.
void check_memory(const std::vector<NamedTensor>& parameters, const std::vector<NamedTensor>& all,
                  const char* changed) {
  for (const NamedTensor& parameter : parameters) {
    const Extent own = extent_of(parameter.tensor);
    for (const NamedTensor& other : all) {
      if (other.tensor.is_same(parameter.tensor)) continue;
      OSLO_CHECK(!own.overlaps(extent_of(other.tensor)), "parameters ", parameter.name, " and ",
                 other.name, " are two tensors over one memory, which ", changed,
                 " them would part; tie them by assigning the tensor itself");
    }
  }
}

void check_no_graph(const at::Tensor& parameter, const std::string& name) {
  OSLO_CHECK(!torch::autograd::impl::try_get_grad_accumulator(parameter), "parameter ", name,
             " is part of an autograd graph that is still alive (an output kept from before, or "
             "an earlier DistributedDataParallel); let go of it before initialize");
}

/// Nothing holds the parameter as it is.
void check_free(const at::Tensor& parameter, const std::string& name) {
  check_no_graph(parameter, name);
  OSLO_CHECK(!parameter.grad().defined() || !parameter.grad().is_sparse(), "parameter ", name,
             " has a sparse gradient, which cannot be cut; call zero_grad() before initialize");
}

}  // namespace

void check_markable(const ModelView& model) {
  const std::vector<NamedTensor> all = model.in_use();
  for (const NamedTensor& parameter : all) check_free(parameter.tensor, parameter.name);
  check_memory(all, all, "marking");
}

void check_all_cuttable(const ModelView& model) {
  const std::vector<NamedTensor> parameters = model.in_use();
  for (const NamedTensor& each : parameters) check_free(each.tensor, each.name);
  std::vector<NamedTensor> all = parameters;
  for (const BufferView& buffer : model.buffers()) all.push_back({buffer.path, buffer.tensor});
  check_memory(parameters, all, "cutting");
}

void check_cuttable(const std::vector<LayerPlan>& layers, const ModelView& model,
                    const StageMap& stages) {
  std::vector<NamedTensor> cut;
  const auto check = [&](const at::Tensor& parameter, const std::string& name) {
    check_free(parameter, name);
    cut.push_back({name, parameter});
  };
  for (const LayerPlan& layer : layers) {
    for (const LayerPlan::Part& part : layer.parts()) {
      if (part.bias ? layer.cuts_bias() : layer.cuts_weight()) check(part.tensor, part.path);
    }
  }
  for (const ParameterView& parameter : model.parameters()) {
    if (!stages.of(parameter.in_use()).empty()) check(parameter.in_use(), parameter.path);
  }
  for (const BufferView& buffer : model.buffers()) {
    if (!stages.of(buffer.tensor).empty()) cut.push_back({buffer.path, buffer.tensor});
  }
  // With whatever else of the model it may share memory, cut or whole.
  std::vector<NamedTensor> all = model.in_use();
  for (const BufferView& buffer : model.buffers()) all.push_back({buffer.path, buffer.tensor});
  check_memory(cut, all, "cutting");
}

void check_free_of_graphs(const ModelView& model) {
  for (const NamedTensor& parameter : model.in_use()) {
    if (mark_of(parameter.tensor) != nullptr) continue;  // of another model, too
    check_no_graph(parameter.tensor, parameter.name);
  }
}

void check_divides(const std::vector<LayerPlan>& layers, const ContextPtr& context) {
  for (const LayerPlan& layer : layers) {
    if (layer.decided) continue;
    try {
      for (const LayerPlan::Part& part : layer.parts()) {
        make_layout(context, layer.placements(part, context->mesh()), part.tensor.sizes());
      }
    } catch (const Error& error) {
      fail_as(kind_of(error), layer.why, ": ", layer.path, " as ", layer.style_text(), ": ",
              error.what());
    }
  }
}

void cut_parameters(const std::vector<LayerPlan>& layers, const ContextPtr& context,
                    const StageMap& stages) {
  const PlannedUses uses = planned_uses(layers, context->mesh());
  for (const LayerPlan& layer : layers) {
    for (const LayerPlan::Part& part : layer.parts()) {
      const auto use = uses.find(part.tensor.unsafeGetTensorImpl());
      cut(part.tensor, layer.placements(part, context->mesh()), part.path, context,
          stages.of(part.tensor), use != uses.end());
      if (use != uses.end()) set_weight_uses(part.tensor, use->second);
    }
    const auto after_cut = layer.traits().after_cut;
    if (layer.module && after_cut != nullptr) after_cut(*layer.module);
  }
}

void place_on_stages(const ModelView& model, const ContextPtr& context, const StageMap& stages) {
  const std::vector<Placement> whole(context->mesh().axes());
  const auto place = [&](const at::Tensor& tensor, const std::string& name) {
    if (!stages.of(tensor).empty()) cut(tensor, whole, name, context, stages.of(tensor));
  };
  const auto place_parameter = [&](const at::Tensor& tensor, const std::string& name) {
    if (context->follows()) return cut(tensor, whole, name, context, stages.of(tensor));
    place(tensor, name);
  };
  for (const ParameterView& parameter : model.parameters()) {
    place_parameter(parameter.in_use(), parameter.path);
    place_parameter(parameter.registered, parameter.path);
  }
  for (const BufferView& buffer : model.buffers()) place(buffer.tensor, buffer.path);
}

void mark_whole(const ModelView& model, const ContextPtr& context) {
  const std::vector<Placement> whole(context->mesh().axes());
  for (const NamedTensor& parameter : model.in_use()) {
    cut(parameter.tensor, whole, parameter.name, context, {}, /*even_whole=*/true);
  }
}

void cut_unused_parameters(const std::vector<LayerPlan>& layers, const ModelView& model) {
  std::set<const c10::TensorImpl*> used;
  for (const NamedTensor& parameter : model.in_use()) {
    used.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  for (const LayerPlan& layer : layers) {
    if (layer.parameter()) continue;
    const at::Tensor& registered = layer.view.weight.registered;
    const Mark* mark = mark_of(layer.weight());
    if (!registered.defined() || mark == nullptr) continue;
    if (used.count(registered.unsafeGetTensorImpl()) > 0 || mark_of(registered)) continue;
    const auto sizes = mark->layout->global_sizes(layer.weight().sizes());
    if (registered.sizes() != c10::IntArrayRef(sizes) || registered.grad().defined()) continue;
    if (registered.storage().use_count() > 1) continue;
    if (torch::autograd::impl::try_get_grad_accumulator(registered)) continue;
    mark_parameter(registered, mark->layout, layer.weight_path());
  }
}

void keep_gradients_whole(const ModelView& model) {
  for (const NamedTensor& parameter : model.in_use()) {
    if (mark_of(parameter.tensor) == nullptr && parameter.tensor.is_leaf()) {
      gather_gradients_of_leaf(parameter.tensor);
    }
  }
}

}  // namespace oslo
