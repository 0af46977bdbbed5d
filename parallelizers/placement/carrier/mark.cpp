#include "parallelizers/placement/carrier/mark.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/variable.h>

#include "mpu/base/error.h"
#include "parallelizers/libtorch/tag_end.h"
#include "parallelizers/placement/carrier/accumulate_marked.h"
#include "parallelizers/placement/carrier/part_storage.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/layout/sharded_weight.h"

namespace oslo {
namespace {

at::Tensor meta_like(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(),
                           at::TensorOptions(tensor.dtype()).device(at::kMeta));
}

/// What a marked tensor is on a rank whose stage does not hold it: of the shape of `shape` and
/// without storage, on the model's device, so that code which asks for that gets the true one.
c10::intrusive_ptr<c10::TensorImpl> implementation_of_shape(const at::Tensor& shape,
                                                            at::Device device) {
  const auto key = c10::computeDispatchKey(shape.scalar_type(), at::kStrided, device);
  auto impl = c10::make_intrusive<c10::TensorImpl>(c10::DispatchKeySet({key, kPlacedKey}),
                                                   shape.dtype(), device);
  impl->set_sizes_and_strides(shape.sizes(), shape.strides());
  impl->release_storage_and_set_meta_custom_data_ptr_error_msg_(
      "the data of a parameter or buffer was asked for where it is a shape without content: "
      "another pipeline stage holds it, or InitializeOptions::example_inputs is being run; take "
      "oslo::local_tensor(p) where oslo::is_here(p), or between steps, on all ranks, "
      "oslo::full_tensor(p)");
  return impl;
}

c10::intrusive_ptr<c10::TensorImpl> marked_implementation(const at::Tensor& local,
                                                          const Layout& layout, at::Device device) {
  return layout.here() ? implementation_over(local, true) : implementation_of_shape(local, device);
}

void set_mark(c10::TensorImpl& impl, c10::intrusive_ptr<Mark> mark) {
  set_tag_part(impl, TagKind::mark, std::move(mark));
}

void set_accumulator(const at::Tensor& parameter, const Mark& mark) {
  if (parameter.is_inference()) return;
  mark.accumulator = make_accumulator(parameter, mark.layout, &set_gradient_mark, mark.sharded);
  torch::autograd::impl::set_grad_accumulator(parameter, WeakNodePtr(mark.accumulator));
}

ParameterLayouts with_stages(const ParameterLayouts& layouts, StageSet stages) {
  const auto with = [&](const LayoutPtr& layout) -> LayoutPtr {
    auto changed = std::make_shared<Layout>(*layout);
    changed->set_stages(stages);
    return changed;
  };
  ParameterLayouts changed(with(layouts.parameter));
  if (layouts.gradient != layouts.parameter) changed.gradient = with(layouts.gradient);
  if (layouts.state != layouts.parameter) changed.state = with(layouts.state);
  return changed;
}

/// The mark of what belongs to a parameter and is no value of a forward.
c10::intrusive_ptr<Mark> not_followed(const Mark& own) {
  auto mark = c10::make_intrusive<Mark>(own);
  const LayoutPtr& gradient = own.layouts.gradient;
  if (!gradient->followed() && *gradient == *own.layout) {
    mark->layout = gradient;
  } else {
    auto layout = std::make_shared<Layout>(*own.layout);
    layout->set_followed(false);
    mark->layout = std::move(layout);
  }
  return mark;
}

/// A tensor over the storage of `local`, without history, that is yet to be told its mark.
at::Tensor over_part(const at::Tensor& local, const Layout& layout, at::Device device) {
  auto impl = marked_implementation(local, layout, device);
  if (!impl->is_inference() && !local.is_inference()) {
    impl->set_version_counter(local.unsafeGetTensorImpl()->version_counter());
  }
  return at::Tensor(std::move(impl));
}

/// What belongs to `parameter` and lies as one of its layouts says. Where that is the parameter's
/// own they share a mark.
at::Tensor marked_as(const at::Tensor& local, const at::Tensor& parameter,
                     const LayoutPtr& layout) {
  const Mark& own = *mark_of(parameter);
  if (layout == own.layout) return marked_like(local, parameter);
  auto mark = c10::make_intrusive<Mark>(own);
  mark->layout = layout;
  mark->local_sizes.assign(local.sizes().begin(), local.sizes().end());
  if (!(*layout == *own.layout)) mark->accumulator = nullptr;
  at::Tensor marked = over_part(local, *layout, parameter.device());
  set_mark(*marked.unsafeGetTensorImpl(), std::move(mark));
  return marked;
}

}  // namespace

const Mark* mark_of(const at::Tensor& tensor) {
  auto* impl = tensor.unsafeGetTensorImpl();
  if (!impl->key_set().has(kPlacedKey) || placed_impl(tensor)) return nullptr;
  const auto* const mark = static_cast<const Mark*>(tag_part(*impl, TagKind::mark));
  OSLO_CHECK(mark != nullptr, "a tensor of shape ", tensor.sizes(),
             " was made from a parallel parameter in a way that lost which part of it this rank "
             "holds; use an operator on the parameter itself");
  OSLO_CHECK(tensor.sizes() == c10::IntArrayRef(mark->local_sizes), "parallel parameter ",
             mark->name, " has shape ", tensor.sizes(), ", its layout (", mark->layout->to_string(),
             ") says ", c10::IntArrayRef(mark->local_sizes),
             "; it was resized or replaced after initialize");
  return mark;
}

void mark_parameter(const at::Tensor& parameter, const LayoutPtr& layout, const std::string& name) {
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  const at::Tensor whole = layout->here() ? parameter.detach() : meta_like(parameter);
  // What is marked only to be followed keeps its memory, and the order of its elements.
  const bool keeps = layout->followed() && layout->whole() && !layout->resident() &&
                     whole.has_storage() && !whole.key_set().has(kDeferredKey);
  const at::Tensor local =
      keeps ? whole : local_part(whole, *layout).clone(at::MemoryFormat::Contiguous);
  auto impl = marked_implementation(local, *layout, layout->context()->device());
  auto mark = c10::make_intrusive<Mark>(name, layout, local.sizes());
  set_mark(*impl, mark);
  parameter.unsafeGetTensorImpl()->shallow_copy_from(impl);
  end_tag_with(parameter);
  if (layout->here()) {
    set_accumulator(parameter, *mark);
  } else {  // no gradient arrives; the planner puts back the one that the parameter had
    mark->accumulator = make_accumulator(parameter, layout, &set_gradient_mark);
    // In its runs torch::autograd::grad asks for the parameter's gradient, a shape.
    const bool asked = layout->context()->imagined() != nullptr && !parameter.is_inference();
    if (asked)
      torch::autograd::impl::set_grad_accumulator(parameter, WeakNodePtr(mark->accumulator));
  }
}

void mark_in_place(const at::Tensor& tensor, const LayoutPtr& layout, const std::string& name) {
  auto impl = marked_implementation(tensor, *layout, layout->context()->device());
  set_mark(*impl, c10::make_intrusive<Mark>(name, layout, tensor.sizes()));
  tensor.unsafeGetTensorImpl()->shallow_copy_from(impl);
}

void lay_parameter(const at::Tensor& parameter, const at::Tensor& part, const LayoutPtr& layout,
                   const std::string& name, std::shared_ptr<ShardedWeight> sharded) {
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  const Mark* const before = mark_of(parameter);
  auto mark = c10::make_intrusive<Mark>(name, layout, part.sizes());
  if (before != nullptr) mark->padding_row = before->padding_row;
  if (before != nullptr) mark->uses = before->uses;
  mark->sharded = std::move(sharded);
  const auto impl = marked_implementation(part, *layout, parameter.device());
  set_mark(*impl, mark);
  parameter.unsafeGetTensorImpl()->shallow_copy_from(impl);
  end_tag_with(parameter);
  if (layout->here()) {
    set_accumulator(parameter, *mark);
  } else {
    mark->accumulator = make_accumulator(parameter, layout, &set_gradient_mark);
  }
}

bool is_sharded(const at::Tensor& parameter) {
  const Mark* const mark = parameter.defined() ? mark_of(parameter) : nullptr;
  return mark != nullptr && mark->sharded && mark->layout->context()->replica_axis >= 0;
}

ShardedWeight* sharded_weight(const at::Tensor& tensor, const Mark& mark) {
  if (!mark.sharded || !mark.accumulator || !accumulates_for(*mark.accumulator, tensor)) {
    return nullptr;
  }
  return mark.sharded.get();
}

at::Tensor marked_in(const at::Tensor& local, const at::Tensor& like, const LayoutPtr& layout) {
  auto mark = c10::make_intrusive<Mark>(*mark_of(like));
  mark->layout = layout;
  mark->layouts = ParameterLayouts(layout);
  mark->local_sizes.assign(local.sizes().begin(), local.sizes().end());
  mark->accumulator = nullptr;
  at::Tensor marked = over_part(local, *layout, like.device());
  set_mark(*marked.unsafeGetTensorImpl(), std::move(mark));
  if (local.grad_fn()) {
    torch::autograd::impl::set_gradient_edge(marked, torch::autograd::impl::gradient_edge(local));
  }
  return marked;
}

void set_stages_of(const at::Tensor& parameter, StageSet stages, const at::Tensor& part) {
  const Mark* const before = mark_of(parameter);
  const LayoutPtr lay = before->layout;
  const bool was_here = lay->here();
  const at::Tensor gradient = parameter.grad();
  auto changed = c10::make_intrusive<Mark>(*before);
  changed->layouts = with_stages(before->layouts, stages);
  const LayoutPtr layout = changed->layout = changed->layouts.parameter;
  if (layout->here() != was_here) {
    const bool trains = parameter.requires_grad();
    const at::Tensor own = was_here ? unmarked_alias(parameter) : part;
    const auto impl = marked_implementation(own, *layout, parameter.device());
    set_mark(*impl, changed);
    parameter.unsafeGetTensorImpl()->shallow_copy_from(impl);
    parameter.set_requires_grad(trains);
  } else {
    set_mark(*parameter.unsafeGetTensorImpl(), changed);
  }
  if (layout->here()) set_accumulator(parameter, *changed);
  if (changed->sharded) changed->sharded->lies_in(parameter, layout);
  if (!gradient.defined()) return;
  const Mark* const own = mark_of(gradient);
  const at::Tensor local = unmarked_alias(gradient);
  const bool exchanged = own != nullptr && own->layout != lay;
  parameter.mutable_grad() =
      exchanged ? marked_gradient(local, parameter) : marked_like(local, parameter);
}

ParameterLayouts layouts_of(const at::Tensor& parameter) {
  const Mark* const mark = mark_of(parameter);
  return mark == nullptr ? ParameterLayouts() : mark->layouts;
}

void set_layouts(const at::Tensor& parameter, LayoutPtr gradient, LayoutPtr state) {
  const Mark* const mark = mark_of(parameter);
  OSLO_CHECK(mark != nullptr, "how gradients and states lie is set on a parameter that is marked");
  auto changed = c10::make_intrusive<Mark>(*mark);
  changed->layouts = {mark->layout, std::move(gradient), std::move(state)};
  set_mark(*parameter.unsafeGetTensorImpl(), std::move(changed));
}

void set_padding_row(const at::Tensor& parameter, int64_t row) {
  const Mark* mark = mark_of(parameter);
  OSLO_CHECK(mark != nullptr, "a padding row is set on a table that is cut over ranks");
  auto changed = c10::make_intrusive<Mark>(*mark);
  changed->padding_row = row;
  set_mark(*parameter.unsafeGetTensorImpl(), std::move(changed));
}

void set_weight_uses(const at::Tensor& parameter, std::shared_ptr<const WeightUses> uses) {
  const Mark* mark = mark_of(parameter);
  OSLO_CHECK(mark != nullptr, uses->planned, ": how its results lie is set after it was marked");
  const auto axes = static_cast<size_t>(mark->layout->axes());
  for (const auto* use : {&uses->product, &uses->lookup}) {
    OSLO_CHECK(use->empty() || use->size() == axes, uses->planned, ": the mesh has ", axes,
               " axes, the plan speaks of ", use->size(), "; give one entry an axis");
  }
  auto changed = c10::make_intrusive<Mark>(*mark);
  changed->uses = std::move(uses);
  set_mark(*parameter.unsafeGetTensorImpl(), std::move(changed));
}

at::Tensor marked_like(const at::Tensor& local, const at::Tensor& like,
                       std::optional<at::Device> device) {
  at::Tensor marked = over_part(local, *mark_of(like)->layout, device.value_or(like.device()));
  copy_tag(*like.unsafeGetTensorImpl(), *marked.unsafeGetTensorImpl());
  return marked;
}

at::Tensor marked_gradient(const at::Tensor& local, const at::Tensor& parameter) {
  return marked_as(local, parameter, mark_of(parameter)->layouts.gradient);
}

at::Tensor marked_state(const at::Tensor& local, const at::Tensor& parameter) {
  return marked_as(local, parameter, mark_of(parameter)->layouts.state);
}

at::Tensor blank_in(const at::Tensor& parameter, const LayoutPtr& layout) {
  const Mark* const mark = mark_of(parameter);
  if (mark == nullptr) return parameter.detach();
  at::Tensor own = unmarked_alias(parameter);
  if (layout == mark->layout) return own;
  const BelowDoor below;
  const auto global = mark->layout->global_sizes(parameter.sizes());
  const at::Tensor whole = at::empty(global, at::TensorOptions(own.dtype()).device(at::kMeta));
  return own.new_empty(local_part(whole, *layout).sizes());
}

void set_gradient_mark(c10::TensorImpl& marked, const at::Tensor& parameter) {
  const Mark& own = *mark_of(parameter);
  copy_tag(*parameter.unsafeGetTensorImpl(), marked);
  if (own.layout->followed()) set_mark(marked, not_followed(own));
}

void stop_following(const at::Tensor& marked) {
  const Mark& own = *mark_of(marked);
  if (own.layout->followed()) set_mark(*marked.unsafeGetTensorImpl(), not_followed(own));
}

void set_made_like(const at::Tensor& marked) {
  auto changed = c10::make_intrusive<Mark>(*mark_of(marked));
  changed->made_like = true;
  set_mark(*marked.unsafeGetTensorImpl(), std::move(changed));
}

bool is_gradient(const at::Tensor& tensor) {
  const Mark* const mark = mark_of(tensor);
  if (mark == nullptr || !mark->layout->resident()) return false;
  // Elsewhere there is none, and no memory to ask for.
  if (mark->made_like || !mark->layout->here()) return false;
  // One that lies otherwise than its parameter is nothing else.
  const ParameterLayouts& layouts = mark->layouts;
  if (mark->layout == layouts.gradient && !(*mark->layout == *layouts.parameter)) return true;
  if (!mark->accumulator) return false;
  const at::Tensor parameter = accumulated_parameter(*mark->accumulator);
  return parameter.defined() && !tensor.is_same(parameter) && !tensor.is_alias_of(parameter);
}

void share_mark(const at::Tensor& marked, const at::Tensor& of) {
  copy_tag(*of.unsafeGetTensorImpl(), *marked.unsafeGetTensorImpl());
}

at::Tensor plain_values(const at::Tensor& tensor) {
  return mark_of(tensor) == nullptr ? tensor.detach() : unmarked_alias(tensor);
}

at::Tensor unmarked_alias(const at::Tensor& tensor) {
  if (!tensor.has_storage()) {  // elsewhere
    const BelowDoor below;
    return meta_like(tensor);
  }
  auto impl = implementation_over(tensor, false);
  if (!impl->is_inference() && !tensor.is_inference()) {  // new tensors in inference mode are
    impl->set_version_counter(tensor.unsafeGetTensorImpl()->version_counter());
  }
  return at::Tensor(std::move(impl));
}

}  // namespace oslo
