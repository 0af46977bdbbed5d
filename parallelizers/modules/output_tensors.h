#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

namespace oslo {

/// What the forward of a module returns, as far as DistributedDataParallel can look inside: a
/// tensor; vectors, arrays, optionals, pairs, tuples of such things; maps to such things.
template <typename T>
struct OutputTensors {
  static constexpr bool known = false;
};

template <typename T>
void collect_tensors(const T& value, std::vector<at::Tensor>& tensors) {
  if constexpr (OutputTensors<T>::known) OutputTensors<T>::collect(value, tensors);
}

template <>
struct OutputTensors<at::Tensor> {
  static constexpr bool known = true;
  static void collect(const at::Tensor& value, std::vector<at::Tensor>& tensors) {
    if (value.defined()) tensors.push_back(value);
  }
};

template <typename T>
struct OutputTensors<std::optional<T>> {
  static constexpr bool known = OutputTensors<T>::known;
  static void collect(const std::optional<T>& value, std::vector<at::Tensor>& tensors) {
    if (value) collect_tensors(*value, tensors);
  }
};

/// Ranges of values.
template <typename Range, typename T>
struct OutputTensorsOfRange {
  static constexpr bool known = OutputTensors<T>::known;
  static void collect(const Range& values, std::vector<at::Tensor>& tensors) {
    for (const auto& value : values) collect_tensors(value, tensors);
  }
};
template <typename T>
struct OutputTensors<std::vector<T>> : OutputTensorsOfRange<std::vector<T>, T> {};
template <typename T, size_t N>
struct OutputTensors<std::array<T, N>> : OutputTensorsOfRange<std::array<T, N>, T> {};

/// Ranges of (key, value).
template <typename Map, typename T>
struct OutputTensorsOfMap {
  static constexpr bool known = OutputTensors<T>::known;
  static void collect(const Map& entries, std::vector<at::Tensor>& tensors) {
    for (const auto& entry : entries) collect_tensors(entry.second, tensors);
  }
};
template <typename K, typename T>
struct OutputTensors<std::map<K, T>> : OutputTensorsOfMap<std::map<K, T>, T> {};
template <typename K, typename T>
struct OutputTensors<std::unordered_map<K, T>> : OutputTensorsOfMap<std::unordered_map<K, T>, T> {};

/// Fixed rows of values; those of other types (a size, a flag) are passed over.
template <typename Tuple, typename... T>
struct OutputTensorsOfTuple {
  static constexpr bool known = (OutputTensors<T>::known || ...);
  static void collect(const Tuple& values, std::vector<at::Tensor>& tensors) {
    std::apply([&](const auto&... value) { (collect_tensors(value, tensors), ...); }, values);
  }
};
template <typename... T>
struct OutputTensors<std::tuple<T...>> : OutputTensorsOfTuple<std::tuple<T...>, T...> {};
template <typename A, typename B>
struct OutputTensors<std::pair<A, B>> : OutputTensorsOfTuple<std::pair<A, B>, A, B> {};

}  // namespace oslo
