// Where LibTorch's dispatcher comes in for tensors without content: every operator of a thread with
// a DeferredInit, or with ShapeKernels, and operators on what a DeferredInit made. Registered once
// a process; holds nothing.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "mpu/base/error.h"
#include "parallelizers/deferred/content.h"
#include "parallelizers/deferred/current_model.h"
#include "parallelizers/deferred/fill.h"
#include "parallelizers/deferred/record.h"
#include "parallelizers/libtorch/key_fallback.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/elsewhere/shape_kernels.h"

namespace oslo {
namespace {

/// A call's arguments, as far as this is about them.
struct Met {
  at::Tensor deferred;    ///< one of them
  bool ordinary = false;  ///< has others, too, which are more than a number
  std::shared_ptr<DeferredModel> model;
};

Met look_at(c10::ArrayRef<c10::IValue> arguments) {
  Met met;
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    Content* content = content_of(tensor);
    if (content != nullptr && content->filled) {
      fill(tensor);
      content = nullptr;
    }
    if (content == nullptr) {
      met.ordinary |= tensor.dim() > 0;
    } else if (!met.deferred.defined()) {
      met.deferred = tensor;
      met.model = content->model;
    }
  });
  return met;
}

bool has_tensors(c10::ArrayRef<c10::IValue> arguments) {
  bool found = false;
  for_each_tensor(arguments, [&](const at::Tensor&) { found = true; });
  return found;
}

bool gives_tensors(const OperatorEntry& op) {
  const auto& returns = op.schema->returns();
  return !returns.empty() && std::all_of(returns.begin(), returns.end(), [](const auto& each) {
    return each.type()->isSubtypeOf(*c10::TensorType::get()) ||
           each.type()->isSubtypeOf(*c10::ListType::ofTensors());
  });
}

/// Whether it turns elements into numbers.
bool reads(const OperatorEntry& op) {
  return !gives_tensors(op) && !op.schema->is_mutable();
}

/// Asks for a shape, not for content.
bool asks_for_shape(std::string_view name) {
  static constexpr std::array kBeginnings{
      "aten::size",         "aten::stride",
      "aten::sym_",         "aten::dim",
      "aten::numel",        "aten::is_",
      "aten::_version",     "aten::storage_offset",
      "aten::retains_grad", "aten::_has_compatible_shallow_copy_type"};
  if (name == "aten::is_nonzero" || name == "aten::is_set_to") return false;
  return std::any_of(kBeginnings.begin(), kBeginnings.end(),
                     [&](const char* beginning) { return name.starts_with(beginning); });
}

bool changes_memory(std::string_view name) {
  return name.starts_with("aten::resize") || name.starts_with("aten::set_") ||
         name.starts_with("aten::_resize");
}

bool writes_to_ordinary(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  bool found = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const auto* alias = op.schema->arguments()[i].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    for_each_tensor_in(arguments[i],
                       [&](const at::Tensor& tensor) { found |= content_of(tensor) == nullptr; });
  }
  return found;
}

/// What a model that has been filled keeps beside its parameters and buffers is filled when it is
/// used. Any other tensor without content is refused.
void fill_or_refuse(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    const Content* content = content_of(tensor);
    OSLO_CHECK(content == nullptr || content->model->filled, op.name, ": a tensor of shape ",
               tensor.sizes(),
               " was made under oslo::DeferredInit and has no content yet; call oslo::initialize "
               "or oslo::materialize before the model is used");
    fill(tensor);
  });
}

void check_device(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  for (const c10::IValue& argument : arguments) {
    if (!argument.isDevice()) continue;
    OSLO_CHECK(argument.toDevice().is_cpu() || argument.toDevice().is_meta(), op.name,
               " under oslo::DeferredInit, on ", argument.toDevice(),
               ": deferred tensors are the CPU's; construct the model there, and move it with "
               "model->to(device) after initialize or materialize");
  }
}

bool is_on_meta(c10::ArrayRef<c10::IValue> arguments) {
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::IValue& argument) {
    return argument.isDevice() && argument.toDevice().is_meta();
  });
}

/// Operators that are defined by others, which are met one by one: then the numbers are drawn, and
/// constants filled in, by an operator in place.
std::optional<c10::DispatchKey> definition_of(const OperatorEntry& op) {
  if (op.handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    return c10::DispatchKey::CompositeImplicitAutograd;
  }
  static constexpr std::array kConstants{"aten::zeros",      "aten::ones",      "aten::full",
                                         "aten::zeros_like", "aten::ones_like", "aten::full_like",
                                         "aten::new_zeros",  "aten::new_ones",  "aten::new_full"};
  const bool constant =
      std::find(kConstants.begin(), kConstants.end(), op.name) != kConstants.end();
  const bool drawn = op.random && !op.in_place && !op.writes_out;
  const bool defined =
      op.handle.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
  if ((constant || drawn) && defined) return c10::DispatchKey::CompositeExplicitAutograd;
  return std::nullopt;
}

void check_generator(const OperatorEntry& op) {
  const auto& arguments = op.schema->arguments();
  const bool takes = std::any_of(arguments.begin(), arguments.end(), [](const auto& argument) {
    return argument.name() == "generator";
  });
  OSLO_CHECK(!op.random || takes, op.name,
             " under oslo::DeferredInit draws random numbers and takes no generator, so that it "
             "cannot be repeated; draw by uniform_, normal_ or bernoulli_");
}

void run_below(const OperatorEntry& op, torch::jit::Stack& stack) {
  const BelowDeferred below;
  op.handle.callBoxed(&stack);
}

void meet(const c10::OperatorHandle& handle, torch::jit::Stack* stack) {
  const OperatorEntry& op = entry_of(handle);
  ShapeKernels* const kernels = ShapeKernels::current();
  if (kernels != nullptr && kernels->run(op, *stack)) return;
  const auto arguments = c10::ArrayRef<c10::IValue>(*stack).slice(stack->size() - op.arguments);
  const auto current = current_deferred_model();
  const Met met = look_at(arguments);
  const bool made_here = current && !has_tensors(arguments) && gives_tensors(op);
  if (!met.deferred.defined() && !made_here) return run_below(op, *stack);
  if (is_on_meta(arguments) || asks_for_shape(op.name)) return run_below(op, *stack);
  if (const auto definition = definition_of(op)) {
    return handle.callBoxedForDispatchKey(*definition, *stack);
  }
  const bool view = op.view || (op.in_place && handle.hasTag(at::Tag::inplace_view));
  if (view && !changes_memory(op.name)) return run_below(op, *stack);
  if (!current) {
    const bool initializes = !c10::GradMode::is_enabled() && !met.ordinary && !reads(op);
    if (!initializes && op.name != "aten::_to_copy") {
      fill_or_refuse(op, arguments);
      return run_below(op, *stack);
    }
  }
  OSLO_CHECK(!changes_memory(op.name), op.name,
             " under oslo::DeferredInit: a tensor without content keeps its memory's size; make a "
             "new tensor, or assign it");
  check_device(op, arguments);
  if (reads(op) || writes_to_ordinary(op, arguments)) return run_now(op, *stack);
  check_generator(op);
  record(op, *stack, current ? current : met.model);
}

const KeyFallback interception(kDeferredKey, torch::CppFunction::makeFromBoxedFunction<&meet>());

}  // namespace
}  // namespace oslo
