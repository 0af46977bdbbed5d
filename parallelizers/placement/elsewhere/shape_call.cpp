#include "parallelizers/placement/elsewhere/shape_call.h"

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/enum_tag.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <new>
#include <sstream>

#include "mpu/base/error.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/arguments.h"

namespace oslo {
namespace {

/// All that decides the shapes of an operator's results.
std::string signature(const std::vector<c10::IValue>& arguments) {
  std::ostringstream text;
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    text << '|' << tensor.scalar_type() << tensor.sizes() << tensor.strides();
  });
  for (const c10::IValue& argument : arguments) {
    if (argument.isGenerator() || argument.isTensor() || argument.isTensorList() ||
        argument.isOptionalTensorList()) {
      continue;
    }
    text << '|' << argument;
  }
  return text.str();
}

/// The shape as one that gradients flow to. What an operator returned may be written in place,
/// which a leaf may not.
at::Tensor differentiable(const at::Tensor& shape, bool leaf) {
  if (!c10::GradMode::is_enabled()) return shape;
  shape.set_requires_grad(true);
  return leaf ? shape : shape.clone();
}

/// New shapes like the remembered ones, differentiable where an argument is.
std::vector<c10::IValue> fresh(const std::vector<c10::IValue>& results, bool requires_grad) {
  return with_tensors(results, [&](const at::Tensor& shape) {
    at::Tensor tensor = at::empty_strided(shape.sizes(), shape.strides(), shape.options());
    const bool records = requires_grad && (tensor.is_floating_point() || tensor.is_complex());
    return records ? differentiable(tensor, /*leaf=*/false) : tensor;
  });
}

bool gives_tensors(const OperatorEntry& op) {
  const auto& returns = op.schema->returns();
  return std::any_of(returns.begin(), returns.end(), [](const c10::Argument& result) {
    return result.type()->isSubtypeOf(*c10::TensorType::get()) ||
           result.type()->kind() == c10::TypeKind::ListType;
  });
}

/// Numbers below a tensor's one element, which is to be on the CPU.
bool takes_range_of_tensor(const OperatorEntry& op) {
  return op.name.starts_with("aten::randint_like.Tensor");
}

/// A kernel of a program's own that stands for all devices, or for autograd, may read the memory
/// that shapes do not have; LibTorch would not stop it.
bool takes_shapes(const OperatorEntry& op) {
  if (takes_range_of_tensor(op)) return false;
  return is_of_libtorch(op) || op.handle.hasKernelForDispatchKey(c10::DispatchKey::Meta);
}

/// Content for an operator that needs some: zeros. One whose results have as many rows as values
/// decide (nonzero, a mask as an index) gets what makes them the most: everything counts once. So
/// do masks in general.
void imagine_values(const OperatorEntry& op, std::vector<c10::IValue>& arguments) {
  // istft insists on a window that is not empty, multinomial on probabilities that are not all
  // zero, numbers below a tensor's element on one that is not.
  const bool decides = op.handle.hasTag(at::Tag::dynamic_output_shape) ||
                       op.name == "aten::istft" || op.name.starts_with("aten::multinomial") ||
                       takes_range_of_tensor(op);
  for (c10::IValue& argument : arguments) {
    if (argument.isDevice()) argument = c10::Device(at::kCPU);
    const bool counts = decides && argument.isTensor() && op.name != "aten::index.Tensor";
    argument = with_tensors_in(argument, [&](const at::Tensor& shape) {
      at::Tensor content = zeros_of(shape);
      return counts ? content.fill_(1) : content;
    });
  }
}

/// All as long as the longest.
void imagine_lengths(const OperatorEntry& op, std::vector<c10::IValue>& arguments) {
  const bool packs = op.name == "aten::_pack_padded_sequence";
  const at::Tensor data = arguments[0].toTensor(), shape = arguments[1].toTensor();
  const bool batch_first = packs && arguments[2].toBool();
  const int64_t steps = std::max<int64_t>(1, shape.numel());
  const int64_t each = packs ? data.size(batch_first ? 1 : 0) : data.size(0) / steps;
  arguments[1] = at::full(shape.sizes(), each, shape.options().device(at::kCPU));
}

/// Attention by its definition would make a shape of all scores; this is cheap. Of (query, key,
/// value, ..): the query's sizes, but for the last one.
at::Tensor shape_of_attention(const std::vector<c10::IValue>& arguments) {
  const at::Tensor query = arguments[0].toTensor(), value = arguments[2].toTensor();
  std::vector<int64_t> sizes = query.sizes().vec();
  sizes.back() = value.size(-1);
  return query.sum(-1, true).expand(sizes) + value.sum();
}

/// No rows are added (an expert that got no word), which the kernel for shapes refuses: "select():
/// index 0 out of range", and no other does.
bool adds_no_rows(const OperatorEntry& op, const std::vector<c10::IValue>& arguments) {
  static constexpr std::array kAdding{"aten::index_add", "aten::index_add_", "aten::index_reduce",
                                      "aten::index_reduce_"};
  return std::find(kAdding.begin(), kAdding.end(), op.name) != kAdding.end() &&
         arguments[2].toTensor().numel() == 0;
}

/// Of nothing (a rank without positions) shapes are normalized, and their backward has no kernel.
bool normalizes_nothing(const OperatorEntry& op, const std::vector<c10::IValue>& arguments) {
  static constexpr std::array kNorms{"aten::layer_norm", "aten::native_layer_norm",
                                     "aten::group_norm", "aten::native_group_norm"};
  return std::find(kNorms.begin(), kNorms.end(), op.name) != kNorms.end() &&
         arguments[0].toTensor().numel() == 0;
}

/// Of (self, dim, index, source, ..): self, with a history of both.
at::Tensor shape_without_rows(const OperatorEntry& op, const std::vector<c10::IValue>& arguments) {
  at::Tensor self = arguments[0].toTensor();
  const at::Tensor nothing = arguments[3].toTensor().sum(self.scalar_type());
  return op.in_place ? self.add_(nothing) : self.add(nothing);
}

}  // namespace

bool reads_lengths(const OperatorEntry& op) {
  static constexpr std::array kPacked{"aten::_pack_padded_sequence",
                                      "aten::_pad_packed_sequence",
                                      "aten::lstm.data",
                                      "aten::gru.data",
                                      "aten::rnn_tanh.data",
                                      "aten::rnn_relu.data"};
  return std::find(kPacked.begin(), kPacked.end(), op.name) != kPacked.end();
}

bool reads_elements(const OperatorEntry& op) {
  return !gives_tensors(op) || op.handle.hasTag(at::Tag::dynamic_output_shape) || reads_lengths(op);
}

at::Tensor shape_of(const at::Tensor& tensor) {
  if (tensor.is_meta()) return tensor;
  if (tensor.layout() != at::kStrided) {  // kernels for sparse tensors read their indices
    return at::empty(tensor.sizes(),
                     tensor.options().layout(at::kStrided).device(at::kMeta).requires_grad(false));
  }
  at::Tensor shape = at::empty_strided(tensor.sizes(), tensor.strides(),
                                       tensor.options().device(at::kMeta).requires_grad(false));
  return tensor.requires_grad() ? differentiable(shape, tensor.is_leaf()) : shape;
}

at::Tensor zeros_of(const at::Tensor& shape) {
  // Kernels trust the strides (and a contiguous argument to be so), so that the zeros have them.
  const size_t bytes = std::max<size_t>(
      1, at::detail::computeStorageNbytes(shape.sizes(), shape.strides(), shape.element_size()));
  void* memory = std::calloc(bytes, 1);
  if (memory == nullptr) throw std::bad_alloc();
  at::Tensor zeros = at::from_blob(memory, shape.sizes(), shape.strides(), std::free,
                                   shape.options().device(at::kCPU).requires_grad(false));
  if (shape.scalar_type() == at::kBool) zeros.fill_(true);
  if (c10::GradMode::is_enabled()) zeros.set_requires_grad(shape.requires_grad());
  return zeros;
}

std::vector<c10::IValue> call_on_shapes(const OperatorEntry& op, std::vector<c10::IValue> arguments,
                                        KnownShapes& shapes, ContentProvider* provider) {
  const BelowDoor below;
  arguments = with_tensors(arguments, shape_of);
  for (c10::IValue& argument : arguments) {
    if (argument.isDevice()) argument = c10::Device(at::kMeta);
  }
  bool requires_grad = false;
  if (c10::GradMode::is_enabled()) {
    for_each_tensor(arguments,
                    [&](const at::Tensor& shape) { requires_grad |= shape.requires_grad(); });
  }
  if (const auto known = shapes.results.find(op.name); known != shapes.results.end()) {
    const auto found = known->second.find(signature(arguments));
    if (found != known->second.end()) {
      auto again = fresh(found->second, requires_grad);
      if (shapes.on_known) shapes.on_known(op, arguments, again);
      return again;
    }
  }
  if (op.name == "aten::scaled_dot_product_attention") return {shape_of_attention(arguments)};
  if (adds_no_rows(op, arguments)) return {shape_without_rows(op, arguments)};
  auto results = arguments;
  if (takes_shapes(op) && !normalizes_nothing(op, arguments)) {
    try {
      if (reads_lengths(op)) {
        if (provider == nullptr) return read_elsewhere(provider, op, std::move(arguments));
        imagine_lengths(op, results);
      }
      op.handle.callBoxed(&results);
      return results;
    } catch (const c10::NotImplementedError&) {
      results = arguments;
    }
  }
  if (op.in_place) return {arguments[0]};
  if (!gives_tensors(op) || (provider == nullptr && reads_elements(op))) {
    return read_elsewhere(provider, op, std::move(arguments));
  }
  {
    const at::RecordFunctionGuard unseen(/*is_enabled=*/false);
    const c10::AutoGradMode no_grad(false);
    imagine_values(op, results);
    op.handle.callBoxed(&results);
    results = with_tensors(results, shape_of);
  }
  auto again = fresh(results, requires_grad);
  if (shapes.on_known) shapes.on_known(op, arguments, again);
  shapes.results[op.name].emplace(signature(arguments), std::move(results));
  return again;
}

}  // namespace oslo
