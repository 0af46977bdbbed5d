#include "parallelizers/placement/engine/global_strides.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <exception>
#include <set>
#include <sstream>
#include <string>

#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/elsewhere/shape_call.h"
#include "parallelizers/placement/layout/memory_order.h"

namespace oslo {

at::Tensor whole_shape(const at::Tensor& tensor) {
  const auto options = at::TensorOptions(tensor.scalar_type()).device(at::kMeta);
  const Mark* mark = mark_of(tensor);
  if (mark == nullptr) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  const auto sizes = mark->layout->global_sizes(tensor.sizes());
  if (tensor.is_contiguous()) return at::empty(sizes, options);
  const auto order = memory_order(sizes, tensor.strides());
  return at::empty_strided(sizes, dense_strides(sizes, order), options);
}

namespace {

/// Operators whose kernels for shapes say that results lie otherwise than the others' kernels do.
bool shapes_lie(const OperatorEntry& op) {
  static const std::set<std::string> kOtherwise{
      "aten::max_pool1d",       "aten::pixel_shuffle",     "aten::pixel_unshuffle",
      "aten::reflection_pad3d", "aten::replication_pad2d", "aten::replication_pad3d"};
  return kOtherwise.count(op.name) > 0;
}

/// Of contiguous operands its result may be a permuted one, which a sum over ranks does not keep.
bool gives_own_order(const OperatorEntry& op) {
  return op.name == "aten::einsum";
}

bool all_contiguous(c10::ArrayRef<c10::IValue> arguments) {
  bool all = true;
  for_each_tensor(arguments, [&](const at::Tensor& tensor) {
    all &= tensor.layout() != at::kStrided || tensor.is_contiguous();
  });
  return all;
}

/// Whether a contiguous part has two elements in each dimension in which the whole has them.
bool shows_order(const Value& value) {
  if (value.layout->tells_strides()) return true;
  for (int64_t dim = 0; dim < value.dim(); ++dim) {
    if (value.local.size(dim) <= 1 && value.cut_at(dim)) return false;
  }
  return true;
}

at::Tensor whole_zeros(const at::Tensor& tensor) {
  const at::Tensor shape = whole_shape(tensor);
  at::Tensor zeros =
      at::empty_strided(shape.sizes(), shape.strides(), shape.options().device(tensor.device()));
  zeros.zero_();
  return zeros.set_requires_grad(tensor.requires_grad());
}

void append(std::string& key, int64_t number) {
  key.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

void append(std::string& key, const at::Tensor& tensor) {
  key += static_cast<char>(tensor.scalar_type());
  key += tensor.requires_grad() ? 'g' : '-';
  append(key, tensor.dim());
  for (const int64_t size : tensor.sizes()) append(key, size);
  for (const int64_t stride : tensor.strides()) append(key, stride);
  const Mark* mark = mark_of(tensor);
  if (mark == nullptr) return;
  for (const int64_t size : mark->layout->global_sizes(tensor.sizes())) append(key, size);
}

void append(std::string& key, const c10::IValue& argument) {
  if (argument.isInt()) return append(key, argument.toInt());
  if (argument.isBool()) return append(key, int64_t{argument.toBool()});
  if (argument.isNone() || argument.isGenerator()) return;
  if (argument.isIntList()) {
    for (const int64_t number : argument.toIntVector()) append(key, number);
    return;
  }
  if (argument.isTensor() || argument.isTensorList() || argument.isOptionalTensorList()) {
    return for_each_tensor_in(argument, [&](const at::Tensor& tensor) { append(key, tensor); });
  }
  std::ostringstream text;
  text << argument;
  key += text.str();
}

/// All that decides how an operator's results lie.
std::string signature_of(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  std::string key = op.name;
  key += c10::GradMode::is_enabled() ? "|g" : "|-";
  for (const c10::IValue& argument : arguments) {
    key += '|';
    key += argument.isNone() ? 'n' : '=';
    append(key, argument);
  }
  return key;
}

KnownStrides::Strides strides_of(c10::ArrayRef<c10::IValue> results) {
  KnownStrides::Strides strides;
  for (const c10::IValue& result : results) {
    strides.emplace_back();
    for_each_tensor_in(result, [&](const at::Tensor& tensor) {
      strides.back().push_back(tensor.strides().vec());
    });
  }
  return strides;
}

KnownStrides::Strides learnt(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  if (op.name == "aten::scaled_dot_product_attention" || reads_elements(op)) return {};
  const at::RecordFunctionGuard unseen(/*is_enabled=*/false);
  const bool on_zeros = shapes_lie(op);
  const c10::AutoGradMode records(on_zeros && c10::GradMode::is_enabled());
  const BelowDoor below;
  try {
    std::vector<c10::IValue> results =
        on_zeros ? with_tensors(arguments, whole_zeros) : with_tensors(arguments, whole_shape);
    if (on_zeros) {
      op.handle.callBoxed(&results);
    } else if (op.random) {  // on zeros it would draw
      for (c10::IValue& argument : results) {
        if (argument.isGenerator()) argument = c10::IValue();
      }
      op.handle.callBoxed(&results);
    } else {
      KnownShapes once;
      results = call_on_shapes(op, std::move(results), once, /*provider=*/nullptr);
    }
    return strides_of(results);
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace

bool asks_for_order(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  if (arguments.empty() || !arguments.back().isInt()) return false;
  if (op.schema->arguments().back().name() != "memory_format") return false;
  const auto format = static_cast<at::MemoryFormat>(arguments.back().toInt());
  return format == at::MemoryFormat::ChannelsLast || format == at::MemoryFormat::ChannelsLast3d;
}

bool hides_strides(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments,
                   const Value& result) {
  if (result.local.layout() != at::kStrided) return false;
  if (!all_contiguous(arguments)) return true;
  if (gives_own_order(op)) return true;
  if (!result.stays_placed()) return false;
  if (!result.local.is_contiguous() || asks_for_order(op, arguments)) return true;
  return !op.pointwise && !shows_order(result);
}

std::vector<int64_t> strides_on_one_device(const ModelContext& context, const OperatorEntry& op,
                                           c10::ArrayRef<c10::IValue> arguments, size_t index,
                                           size_t element) {
  std::string call = signature_of(op, arguments);
  auto known = context.strides().find(call, index, element);
  if (known) return *std::move(known);
  KnownStrides::Strides strides = learnt(op, arguments);
  const bool told = index < strides.size() && element < strides[index].size();
  std::vector<int64_t> result = told ? strides[index][element] : std::vector<int64_t>();
  context.strides().keep(std::move(call), std::move(strides));
  return result;
}

}  // namespace oslo
