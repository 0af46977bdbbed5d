#include "parallelizers/placement/engine/in_place.h"

#include <ATen/ATen.h>
#include <ATen/core/enum_tag.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include "mpu/base/error.h"
#include "mpu/base/ledger.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/accumulate_marked.h"
#include "parallelizers/placement/carrier/graph/adopt.h"
#include "parallelizers/placement/carrier/graph/adopted_view.h"
#include "parallelizers/placement/carrier/graph/gathered_view.h"
#include "parallelizers/placement/carrier/graph/graph_place.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/elsewhere/content_provider.h"
#include "parallelizers/placement/elsewhere/stage_value.h"
#include "parallelizers/placement/layout/moving/other_mesh.h"
#include "parallelizers/placement/layout/moving/redistribute.h"
#include "parallelizers/placement/layout/purpose.h"

namespace oslo {
namespace {

/// Whether a marked tensor is a parameter itself, another leaf whose gradient is asked for, or a
/// view of one. Tensors made like a parameter, and its clones, are none.
bool is_marked_leaf(const at::Tensor& marked, const Mark& mark) {
  if (mark.accumulator && accumulates_for(*mark.accumulator, marked)) return true;
  if (!marked.requires_grad()) return false;
  return marked.is_leaf() || marked.grad_fn()->name() == "AliasBackward0";
}

/// The value that an in-place operator may write: for a parameter, its storage itself.
Value writable_value(const at::Tensor& target) {
  const Mark* mark = mark_of(target);
  if (mark == nullptr) return value_of(target);
  if (c10::GradMode::is_enabled() && adopted_base(target).defined()) {
    return {writable_view(target), mark->layout};
  }
  const bool follows = c10::GradMode::is_enabled() && target.requires_grad() && !target.is_leaf();
  if (!follows) return {unmarked_alias(target), mark->layout};
  Value value = value_of_marked(target, *mark);
  if (value.local.is_leaf()) value.local = value.local.clone();  // elsewhere a shape, not written
  return value;
}

/// After a write whose gradient is recorded: `target`, marked, follows its local tensor.
void move_in_graph(const at::Tensor& target, const at::Tensor& local) {
  if (!c10::GradMode::is_enabled() || !local.requires_grad() || !local.grad_fn()) return;
  if (const at::Tensor base = adopted_base(target); base.defined()) return follow_view(base, local);
  OSLO_CHECK(!target.is_view(),
             "values whose gradient is recorded are written through a view into ",
             mark_of(target)->name,
             ", which does not follow it; use the operator that returns a new tensor (cat, stack, "
             "slice_scatter)");
  torch::autograd::impl::set_gradient_edge(target, torch::autograd::impl::gradient_edge(local));
}

/// A parallel parameter, another leaf that is cut, or a view of one.
bool is_of_leaf(const at::Tensor& target) {
  const PlacedTensorImpl* impl = placed_impl(target);
  if (impl == nullptr) {
    const Mark* mark = mark_of(target);
    if (mark == nullptr) return false;
    if (is_adopted(target)) return false;
    // What stages hold, or is followed, is marked though it is whole, buffers too.
    const Layout& lies = *mark->layout;
    const bool whole = (lies.resident() || lies.followed()) && lies.whole();
    return is_marked_leaf(target, *mark) && (!whole || target.requires_grad());
  }
  const GraphPlace* const place = GraphPlace::find(*impl);
  if (place == nullptr) return false;
  const at::Tensor base = place->base();
  const GraphPlace* const of = base.defined() ? GraphPlace::find(*placed_impl(base)) : nullptr;
  const bool views_leaf = place->views_leaf() && !is_adopted(place->leaf());
  return views_leaf || place->state() == GraphPlace::State::leaf ||
         (of != nullptr && of->state() == GraphPlace::State::leaf);
}

/// Throws where what was written is a view of the copy that a forward reads of a parameter, which
/// is kept in fp32: the parameter would not change.
void check_not_a_copy(const PlacedTensorImpl& written, const at::Tensor& local,
                      const char* operation) {
  const GraphPlace* const place = GraphPlace::find(written);
  if (place == nullptr || !place->views_leaf()) return;
  const at::Tensor& leaf = place->leaf();
  const Mark* const mark = placed_impl(leaf) != nullptr ? nullptr : mark_of(leaf);
  if (mark == nullptr || !mark->layout->followed() || !mark->layout->here()) return;
  OSLO_CHECK(local.scalar_type() == leaf.scalar_type(), operation, " writes to a view of ",
             mark->name, ", which 'master_weights' keeps in ", leaf.scalar_type(),
             ": the view is one of its ", local.scalar_type(),
             " copy, and the parameter would not change; write to the parameter itself, or to a "
             "view of p.detach()");
}

constexpr const char* kChangesShape =
    " changes the shape of a placed tensor in place; use the operator that returns a new tensor";

/// After `local`, the inside of `target`, was written.
void written(const at::Tensor& target, at::Tensor local, const char* operation) {
  const LayoutPtr layout = oslo::layout(target);
  if (layout && local.is_inference()) layout->context()->count_write();
  OSLO_CHECK(
      !c10::GradMode::is_enabled() || !local.requires_grad() || !is_of_leaf(target), operation,
      " writes values whose gradient is recorded to a parallel parameter or another leaf; put it "
      "under torch::NoGradGuard");
  PlacedTensorImpl* impl = placed_impl(target);
  if (impl == nullptr) {
    if (mark_of(target) == nullptr) return;
    move_in_graph(target, local);
    // Memory counts the write itself; a shape has none, and is to cross again as well.
    const bool counts =
        layout->here() || layout->context()->imagined() != nullptr || target.is_inference();
    if (!counts) target.unsafeGetTensorImpl()->bump_version();
    return;
  }
  check_not_a_copy(*impl, local, operation);
  if (!impl->is_inference()) impl->bump_version();
  // What was gathered is written back into its base below.
  const at::Tensor adopted = impl->gathered_view() ? at::Tensor() : adopted_base(target);
  if (adopted.defined()) follow_view(adopted, local);
  GraphPlace::of(*impl).replace_value({std::move(local), layout});
  if (!impl->gathered_view()) return;
  GatheredBase& of = *impl->gathered_view()->of;
  {
    // A view taken without gradients records no write, as on one device.
    const c10::AutoGradMode record(c10::GradMode::is_enabled() && of.held().local.requires_grad());
    write_to(of.base(), of.held(), operation);
  }
  of.written_back();
}

/// Where the values are nowhere, an ordinary target (the user's own buffer of results) is written
/// with other content, so that autograd knows what it holds from then on.
void make_writable_to(const at::Tensor& target, at::Tensor& operand, const ContextPtr& context) {
  if (!operand.is_meta() || target.is_meta()) return;
  ContentProvider* const imagined = context ? context->imagined() : nullptr;
  OSLO_CHECK(imagined != nullptr, RuleScope::current(),
             " writes what another pipeline stage holds into an ordinary tensor of shape ",
             target.sizes(), "; write to a buffer of the module, or to a new tensor");
  operand = imagined->content_for(target, operand);
}

}  // namespace

void check_writable(const at::Tensor& target, const char* operation) {
  const PlacedTensorImpl* impl = placed_impl(target);
  if (impl != nullptr && impl->gathered_view()) {
    const GatheredBase& of = *impl->gathered_view()->of;
    OSLO_CHECK(impl->value().local.is_alias_of(of.held().local) || impl->value().elsewhere(),
               operation,
               " would write to a view that had to be copied, so that the tensor it views would "
               "not change; write to that tensor itself, or clone() the view first");
    OSLO_CHECK(!c10::GradMode::is_enabled() || !GraphPlace::of(*impl).is_watched(), operation,
               " would write to a view that had to be gathered and that has a hook or keeps its "
               "gradient; write to the tensor it views, or set the hook after the write");
    check_writable(of.base(), operation);
  }
  OSLO_CHECK(!c10::GradMode::is_enabled() || !target.requires_grad() || !is_of_leaf(target),
             operation,
             " changes a leaf (such as a parallel parameter), or a view of one, in place while its "
             "gradient is recorded; put it under torch::NoGradGuard");
}

void run_in_place(Call& call, const MapOf& map_of) {
  run_in_place(call, map_of,
               [&](c10::ArrayRef<at::Tensor> local) { return call.call_below(local); });
}

void run_in_place(Call& call, const MapOf& map_of, const Call::LocalFunction& function) {
  const at::Tensor target = call.tensor(0);
  check_writable(target, call.name());
  auto operands = call.operands();
  operands[0] = on_mesh_of(writable_value(target), call.context());
  const LayoutPtr before = operands[0].layout;
  if (before) {
    resolve(map_of(operands), operands, Keep::first_operand);
    OSLO_CHECK(operands[0].layout == before, call.name(),
               " would have to change how its target is cut (", before->to_string(),
               "); use the operator that returns a new tensor");
  } else {
    for (Value& operand : operands) {
      operand.local = gather_reported(operand, call.name(), "its target is whole");
      make_writable_to(operands[0].local, operand.local, call.context());
    }
  }
  c10::SmallVector<at::Tensor, 4> local;
  for (Value& operand : operands) local.push_back(std::move(operand.local));
  written(target, function(local)[0].toTensor(), call.name());
  call.result_plain(target);
}

void gather_in_place(Call& call, const std::string& reason) {
  const at::Tensor target = call.tensor(0);
  check_writable(target, call.name());
  const PlacedTensorImpl* impl = placed_impl(target);
  OSLO_CHECK(
      impl == nullptr || !impl->gathered_view() || !call.op().handle.hasTag(at::Tag::inplace_view),
      call.name(), kChangesShape);
  auto operands = call.operands();
  const Value inside = writable_value(target);
  operands[0] = inside;
  c10::SmallVector<at::Tensor, 4> local;
  for (const Value& operand : operands) {
    local.push_back(gather_reported(operand, call.name(), reason));
    make_writable_to(inside.local, local.back(), call.context());
  }
  if (inside.cut()) local[0] = local[0].clone();
  const at::Tensor changed = call.call_below(local)[0].toTensor();
  if (!inside.cut()) {
    written(target, changed, call.name());
  } else {
    OSLO_CHECK(changed.sizes() == c10::IntArrayRef(inside.sizes()), call.name(), kChangesShape);
    const Value part = redistribute({changed, nullptr}, inside.layout);
    written(target, inside.local.copy_(part.local), call.name());
  }
  call.result_plain(target);
}

void write_to(const at::Tensor& target, const Value& value, const char* operation) {
  const bool adopts = value.layout && value.layout->resident() && !is_placed(target);
  if (adopts && value.layout->context()->imagined() == nullptr) {
    adopt_target(target, value.layout->context(), value.layout->stages(), operation);
  }
  check_writable(target, operation);
  if (value.layout) check_written_where_held(value.layout->stages(), target, operation);
  Value inside = writable_value(target);
  const BelowDoor below;
  at::Tensor content;
  {
    const AskerScope asker = AskerScope::with_purpose(purpose::kWrite);
    content = redistribute(value, inside.layout).local;
  }
  make_writable_to(inside.local, content, value.layout ? value.layout->context() : nullptr);
  written(target, inside.local.copy_(content), operation);
}

void write_result(const Call& call, const at::Tensor& target, Value value) {
  write_to(target, call.resident(std::move(value)), call.name());
}

void check_written_where_held(const Call& call, const at::Tensor& target) {
  check_written_where_held(call.place().stages, target, call.name());
}

}  // namespace oslo
