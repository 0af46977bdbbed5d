#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/Storage.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "mpu/base/error.h"

/// What the pickle of a state_dict is made of, for the unpickler and the tensor builder.
namespace oslo::pickle {

struct Sequence;
struct Dict;

/// A name the pickle may use: a function, a storage class or a dtype.
struct Global {
  enum class Kind { kOrderedDict, kTensor, kTensorWithDtype, kParameter, kStorage, kDtype };
  Kind kind;
  at::ScalarType dtype = at::kByte;
};

struct TypedStorage {
  c10::Storage storage;
  at::ScalarType dtype;
};

struct None {};

/// A text lies in the program, so that a value recalled many times takes no more memory.
using Value = std::variant<None, bool, int64_t, double, std::string_view, Sequence*, Dict*, Global,
                           TypedStorage, at::Tensor>;

/// A tuple or a list: nothing here depends on which.
struct Sequence {
  std::vector<Value> items;
};

struct Dict {
  std::vector<std::pair<Value, Value>> items;
};

/// What to call a value in an error.
inline const char* kind_of(const Value& value) {
  constexpr const char* kKinds[] = {"None",      "a bool",  "a number", "a number",
                                    "a text",    "a list",  "a dict",   "a class or function",
                                    "a storage", "a tensor"};
  return kKinds[value.index()];
}

/// The `T` in `value`; throws `Error`, starting with `file`, where it holds something else.
template <typename T>
const T& as(const Value& value, const char* what, const std::string& file) {
  const T* found = std::get_if<T>(&value);
  OSLO_CHECK_AS(file, found != nullptr, file, ": the pickle has ", kind_of(value), " where ", what,
                " belongs: it is damaged");
  return *found;
}

}  // namespace oslo::pickle
