#include "checkpoint/formats/torch_bin/tensor_builder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "checkpoint/formats/tensors/tensor_bytes.h"
#include "checkpoint/formats/tensors/torch_dtypes.h"
#include "checkpoint/storage/outside_text.h"

namespace oslo::pickle {

Global TensorBuilder::find_global(std::string_view module, std::string_view name) const {
  using Kind = Global::Kind;
  if (module == "collections" && name == "OrderedDict") {
    return {Kind::kOrderedDict};
  }
  if (module == "torch._utils") {
    if (name == "_rebuild_tensor_v2") {
      return {Kind::kTensor};
    }
    if (name == "_rebuild_tensor_v3") {
      return {Kind::kTensorWithDtype};
    }
    if (name == "_rebuild_parameter") {
      return {Kind::kParameter};
    }
  }
  if (module == "torch.storage" && name == "UntypedStorage") {
    return {Kind::kStorage, at::kByte};
  }
  if (module == "torch") {
    for (const TorchDtype& known : kTorchDtypes) {
      if (!known.storage.empty() && name == known.storage) {
        return {Kind::kStorage, known.dtype};
      }
      if (name == known.name) {
        return {Kind::kDtype, known.dtype};
      }
    }
  }
  refuse("it asks for ", printable(module), ".", printable(name),
         ", which no state_dict of plain tensors needs; it is refused. Save model.state_dict()");
}

TypedStorage TensorBuilder::load(const Value& id) const {
  const std::vector<Value>& parts = as<Sequence*>(id, "a storage's tuple")->items;
  if (parts.size() != 5 || as<std::string_view>(parts[0], "the word 'storage'") != "storage") {
    refuse("the pickle refers to something that is not a storage");
  }
  const Global& type = as<Global>(parts[1], "a storage class");
  const std::string_view key = as<std::string_view>(parts[2], "a storage's key");
  const int64_t count = as<int64_t>(parts[4], "a storage's length");
  const auto bytes = count < 0 ? std::nullopt : byte_count({count}, c10::elementSize(type.dtype));
  if (type.kind != Global::Kind::kStorage || !bytes) {
    refuse("storage '", printable(key), "' has no storage class or the length ", count,
           ": it is damaged");
  }
  c10::Storage storage = load_storage_(key, *bytes);
  // A storage that will be read later has no memory yet.
  if (type.dtype == at::kBool && storage.data() != nullptr) {
    check_bool_bytes(storage.data(), *bytes, c10::str(file_, ": storage '", printable(key), "'"));
  }
  return {std::move(storage), type.dtype};
}

std::vector<int64_t> TensorBuilder::sizes(const Value& value, const char* what) const {
  const std::vector<Value>& items = as<Sequence*>(value, what)->items;
  // A list may be recalled for many tensors, each of which copies it.
  if (items.size() > kMostDimensions) {
    refuse("a tensor has ", items.size(), " dimensions, and at most ", kMostDimensions,
           " are read");
  }
  std::vector<int64_t> out;
  for (const Value& item : items) {
    out.push_back(as<int64_t>(item, what));
    if (out.back() < 0) {
      refuse("a tensor has the ", what, " ", out.back(), ": the pickle is damaged");
    }
  }
  return out;
}

at::Tensor TensorBuilder::build(const std::vector<Value>& arguments, bool dtype_given) const {
  // storage, offset, size, stride, requires_grad, hooks[, dtype][, metadata]
  const size_t fixed = dtype_given ? 7 : 6;
  if (arguments.size() != fixed && arguments.size() != fixed + 1) {
    refuse("a tensor is made from ", arguments.size(), " values, not ", fixed);
  }
  if (arguments.size() > fixed && !std::holds_alternative<None>(arguments[fixed]) &&
      !as<Dict*>(arguments[fixed], "a tensor's metadata")->items.empty()) {
    refuse("a tensor carries metadata (a conjugate or negative view); save it resolved");
  }
  const TypedStorage& source = as<TypedStorage>(arguments[0], "a storage");
  const int64_t offset = as<int64_t>(arguments[1], "a storage offset");
  const std::vector<int64_t> size = sizes(arguments[2], "size");
  const std::vector<int64_t> stride = sizes(arguments[3], "stride");
  at::ScalarType dtype = source.dtype;
  if (dtype_given) {
    const Global& named = as<Global>(arguments[6], "a dtype");
    if (named.kind != Global::Kind::kDtype) {
      refuse("a tensor has a function where its dtype belongs: the pickle is damaged");
    }
    dtype = named.dtype;
  }
  if (size.size() != stride.size()) {
    refuse("a tensor has ", size.size(), " sizes and ", stride.size(), " strides");
  }

  // The end of the last element the tensor can reach, in elements; nothing for an empty tensor.
  int64_t end = offset;
  bool overflow = offset < 0 || !byte_count(size, c10::elementSize(dtype));
  if (std::find(size.begin(), size.end(), 0) == size.end()) {
    overflow = overflow || __builtin_add_overflow(end, 1, &end);
    for (size_t i = 0; i < size.size(); ++i) {
      int64_t step = 0;
      overflow = overflow || __builtin_mul_overflow(size[i] - 1, stride[i], &step) ||
                 __builtin_add_overflow(end, step, &end);
    }
  }
  const auto held = static_cast<int64_t>(source.storage.nbytes() / c10::elementSize(dtype));
  if (overflow || end > held) {
    refuse("a tensor of sizes ", size, " and strides ", stride, " at offset ", offset,
           " does not fit its storage of ", held, " elements");
  }
  return at::empty({0}, at::TensorOptions(dtype).device(at::kCPU))
      .set_(source.storage, offset, size, stride);
}

}  // namespace oslo::pickle
