#include "parallelizers/placement/door/beside_replicas.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <string>

#include "mpu/base/error.h"
#include "mpu/base/ledger.h"
#include "mpu/grid/group_copies.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/accumulate_marked.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/graph/graph_place.h"
#include "parallelizers/placement/carrier/local_of.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/door/autocast.h"
#include "parallelizers/placement/layout/moving/other_mesh.h"
#include "parallelizers/placement/layout/sharded_weight.h"

namespace oslo {
namespace {

bool over_replicas(const at::Tensor& tensor) {
  if (!tensor.key_set().has(kPlacedKey)) return false;
  const PlacedTensorImpl* const impl = placed_impl(tensor);
  const LayoutPtr& layout = impl != nullptr ? impl->layout() : mark_of(tensor)->layout;
  return layout->context()->replica_axis >= 0;
}

/// The weight that a tensor over replicas is; null where it is something else.
ShardedWeight* weight_of(const at::Tensor& tensor) {
  const Mark* const mark = placed_impl(tensor) != nullptr ? nullptr : mark_of(tensor);
  return mark != nullptr ? sharded_weight(tensor, *mark) : nullptr;
}

struct Operands {
  bool parts = false;    ///< one at least is cut over replicas
  bool forward = false;  ///< and its use is recorded, or could be but that it is frozen
  bool others = false;   ///< there are tensors of this replica
};

Operands look_at(c10::ArrayRef<c10::IValue> arguments) {
  Operands seen;
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    if (over_replicas(tensor)) {
      seen.parts = true;
      seen.forward = seen.forward || (c10::GradMode::is_enabled() &&
                                      (tensor.requires_grad() || weight_of(tensor) != nullptr));
    } else {
      seen.others = seen.others || !tensor.unsafeGetTensorImpl()->is_wrapped_number();
    }
  });
  return seen;
}

/// What the model's own values share, by a tensor that belongs to a weight or views one, or by the
/// operands that no replicas have parts of; null where there is neither.
ContextPtr own_context(const at::Tensor& tensor, c10::ArrayRef<c10::IValue> operands) {
  const PlacedTensorImpl* const impl = placed_impl(tensor);
  const GraphPlace* const place = impl != nullptr ? GraphPlace::find(*impl) : nullptr;
  const Mark* mark = impl == nullptr ? mark_of(tensor) : nullptr;
  if (place != nullptr && place->views_leaf()) mark = mark_of(place->leaf());
  if (mark != nullptr && mark->sharded && mark->sharded->used()) {
    return mark->sharded->used()->context();
  }
  ContextPtr context;
  for_each_tensor(operands, [&](const at::Tensor& other) {
    const LayoutPtr layout = over_replicas(other) ? nullptr : oslo::layout(other);
    if (layout) context = layout->context();
  });
  return context;
}

/// Of what is no weight: a gradient, an optimizer's state, what was computed from such.
at::Tensor whole_of(const at::Tensor& tensor, const OperatorEntry& op,
                    c10::ArrayRef<c10::IValue> operands) {
  Value value = value_of(tensor);
  const LayoutPtr layout = value.layout;
  const int axis = layout->context()->replica_axis;
  const std::shared_ptr<Group>& group = layout->context()->mesh().axis(axis);
  const bool recorded =
      c10::GradMode::is_enabled() && tensor.requires_grad() && !(*layout)[axis].whole();
  if (recorded) value = gather_axis(std::move(value), axis, /*then_copy=*/true);
  at::Tensor whole =
      gather_reported(value, op.name.c_str(), "it met what one data replica computes");
  if (recorded) {  // replicas' gradients are averaged, what was gathered adds them up
    whole.register_hook(
        [replicas = group->size(), copies = copies_of(*group)](const at::Tensor& gradient) {
          if (!copies) return gradient / replicas;
          return copies->all_reduce(gradient / (replicas * copies->size()));
        });
  }
  if (!layout->resident()) return whole;
  const ContextPtr context = own_context(tensor, operands);
  OSLO_CHECK(context, op.name, " of what data replicas on pipeline ", layout->stages().to_string(),
             " keep parts of (zero_optimization, stage 3), beside an ordinary tensor, which all "
             "stages have; give it oslo::full_tensor() of them");
  auto lies = std::make_shared<Layout>(context);
  lies->set_stages(layout->stages());
  return wrap_placed({std::move(whole), std::move(lies)});
}

/// The whole of a weight's transpose, as LibTorch's nn::Linear takes it where no gradients are
/// recorded, by the weight's bucket; undefined where `tensor` is something else.
at::Tensor whole_transpose(const at::Tensor& tensor) {
  const at::Tensor leaf = viewed_parameter(tensor);
  if (!leaf.defined() || leaf.dim() != 2 || tensor.dim() != 2) return {};
  if (tensor.requires_grad()) return {};
  ShardedWeight* const weight = weight_of(leaf);
  if (weight == nullptr) return {};
  const PlacedTensorImpl* const impl = placed_impl(tensor);
  const std::vector<int64_t> sizes = whole_sizes(leaf);
  const at::Tensor& part = impl->value().local;
  const bool transposed = impl->size(0) == sizes[1] && impl->size(1) == sizes[0] &&
                          part.size(0) == leaf.size(1) && part.size(1) == leaf.size(0) &&
                          part.stride(0) == leaf.stride(1) && part.stride(1) == leaf.stride(0) &&
                          part.storage_offset() == leaf.storage_offset() &&
                          part.is_alias_of(unmarked_alias(leaf));
  if (!transposed) return {};
  const c10::AutoGradMode no_grad(false);
  return weight->gathered().t();
}

/// The whole of a weight, by its bucket, where `tensor` is another one over the same part: what a
/// user's autograd::Function gets of a weight that it saved, where hooks pack what is saved.
/// Undefined where it is something else, or its use is recorded.
at::Tensor whole_of_alias(const at::Tensor& tensor) {
  const Mark* const mark = placed_impl(tensor) != nullptr ? nullptr : mark_of(tensor);
  if (mark == nullptr || !mark->sharded || !mark->accumulator) return {};
  if (c10::GradMode::is_enabled() && tensor.requires_grad()) return {};
  const at::Tensor parameter = accumulated_parameter(*mark->accumulator);
  const bool same = parameter.defined() && parameter.sizes() == tensor.sizes() &&
                    parameter.strides() == tensor.strides() &&
                    parameter.storage_offset() == tensor.storage_offset() &&
                    unmarked_alias(parameter).is_alias_of(unmarked_alias(tensor));
  if (!same) return {};
  const c10::AutoGradMode no_grad(false);
  return mark->sharded->gathered();
}

/// Whether the call writes what replicas have parts of: in place, to `out=`, or to tensors of a
/// list.
bool writes_parts(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  bool writes = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* const alias = op.schema->arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    for_each_tensor_in(arguments[i],
                       [&](const at::Tensor& tensor) { writes = writes || over_replicas(tensor); });
  }
  return writes;
}

/// What is written into parts is the same on all replicas. Gathers those operands whose mesh takes
/// no others (layout/moving/other_mesh.h); whether there was one.
bool gather_other_meshes(const OperatorEntry& op, torch::jit::Stack& stack) {
  const size_t base = stack.size() - op.arguments;
  const ContextPtr parts = context_of(c10::ArrayRef<c10::IValue>(stack).slice(base));
  bool gathered = false;
  for (size_t i = base; i < stack.size(); ++i) {
    stack[i] = with_tensors_in(stack[i], [&](const at::Tensor& tensor) {
      const LayoutPtr own = over_replicas(tensor) ? nullptr : layout(tensor);
      if (!own || own->resident() || lies_within(*own->context(), *parts)) return tensor;
      gathered = true;
      return gather_reported(value_of(tensor), op.name.c_str(),
                             "it is written into what data replicas keep parts of");
    });
  }
  return gathered;
}

/// Statistics are written though no schema says so.
void refuse_statistics_in_parts(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  if (op.name.find("batch_norm") == std::string::npos &&
      op.name.find("instance_norm") == std::string::npos) {
    return;
  }
  for (const size_t i : {3, 4}) {
    const bool part = i < arguments.size() && arguments[i].isTensor() &&
                      arguments[i].toTensor().defined() && over_replicas(arguments[i].toTensor());
    OSLO_CHECK(!part, op.name,
               " with statistics that are parameters, of which data replicas keep parts "
               "(zero_optimization, stage 3); register them as buffers");
  }
}

/// As LBFGS does with this rank's elements of its one long vector.
bool gives_a_part_its_sizes(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  if (op.name != "aten::view_as") return false;
  const at::Tensor &elements = arguments[0].toTensor(), &part = arguments[1].toTensor();
  return !over_replicas(elements) && placed_impl(part) == nullptr &&
         elements.numel() == part.numel();
}

}  // namespace

bool cast_beside_replicas(const OperatorEntry& op, torch::jit::Stack& stack,
                          c10::function_ref<void()> run, c10::function_ref<void()> again) {
  if (!op.to_type || !is_inside_autocast()) return false;
  c10::IValue& argument = stack[stack.size() - op.arguments];
  const at::Tensor tensor = argument.toTensor();
  if (!tensor.key_set().has(kPlacedKey)) return false;
  const bool is_view = placed_impl(tensor) != nullptr;
  const at::Tensor parameter = is_view ? viewed_parameter(tensor) : tensor;
  if (!parameter.defined()) return false;
  const Mark& mark = *mark_of(parameter);
  const std::shared_ptr<ShardedWeight> weight = mark.sharded;
  const bool here = mark.layout->here();
  if (!weight || (is_view && !here)) return false;
  at::Tensor whole;
  if (mark.layout->context()->replica_axis < 0) {  // gathered
    whole = is_view ? local_of(tensor) : unmarked_alias(tensor);
    run();
  } else if (is_view || sharded_weight(tensor, mark) == nullptr) {
    return false;
  } else {
    argument = weight->gathered();
    if (argument.toTensor().key_set().has(kPlacedKey)) {  // it comes here once more
      again();
      return true;
    }
    whole = argument.toTensor();
    again();
  }
  if (here) weight->cast_made(local_of(stack.back().toTensor()), whole);
  return true;
}

bool gather_beside_replicas(const OperatorEntry& op, torch::jit::Stack& stack) {
  const size_t base = stack.size() - op.arguments;
  const auto arguments = c10::ArrayRef<c10::IValue>(stack).slice(base);
  const Operands seen = look_at(arguments);
  if (!seen.parts || !(seen.forward || seen.others)) return false;
  if (gives_a_part_its_sizes(op, arguments)) return false;
  refuse_statistics_in_parts(op, arguments);
  if (writes_parts(op, arguments)) {
    OSLO_CHECK(
        op.name != "aten::embedding_renorm_",
        "max_norm of an embedding whose rows data replicas keep parts of (zero_optimization, "
        "stage 3): each replica would norm the rows that it looks up; leave max_norm out, or "
        "set the stage to 1");
    const bool recorded = c10::GradMode::is_enabled() && [&] {
      bool any = false;
      for_each_tensor(arguments, [&](const at::Tensor& tensor) { any |= tensor.requires_grad(); });
      return any;
    }();
    const bool leaf = arguments[0].isTensor() && arguments[0].toTensor().is_leaf();
    OSLO_CHECK(!recorded || leaf, op.name,
               " into a copy of a weight that data replicas keep parts of (zero_optimization, "
               "stage 3), with gradients recorded; compute a new tensor instead");
    return gather_other_meshes(op, stack);
  }
  const RuleScope scope(op.name.c_str());
  const std::vector<c10::IValue> before = arguments.vec();
  // The layer has no padding row where its part of the table has too few rows: the mark has it.
  if (op.name == "aten::embedding") {
    const ShardedWeight* const table = weight_of(arguments[0].toTensor());
    const int64_t padding = table != nullptr ? mark_of(arguments[0].toTensor())->padding_row : -1;
    if (padding >= 0) stack[base + 2] = padding;
  }
  for (size_t i = base; i < stack.size(); ++i) {
    stack[i] = with_tensors_in(stack[i], [&](const at::Tensor& tensor) {
      if (!over_replicas(tensor)) return tensor;
      ShardedWeight* const weight = weight_of(tensor);
      if (weight != nullptr) return weight->gathered();
      at::Tensor whole = whole_of_alias(tensor);
      if (!whole.defined()) whole = whole_transpose(tensor);
      return whole.defined() ? whole : whole_of(tensor, op, before);
    });
  }
  return true;
}

}  // namespace oslo
