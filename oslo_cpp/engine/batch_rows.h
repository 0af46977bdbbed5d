#pragma once

#include <ATen/ATen.h>
#include <torch/data/example.h>

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "mpu/base/error.h"

namespace oslo {

/// How a batch of type `T` is divided into rows, for an engine's loader over data ranks. Tensors
/// are divided along dimension 0; of a LibTorch Example, a pair, a tuple or a vector of tensors
/// each is, alike. A vector of anything else is divided into its elements (a batch that no
/// transform has stacked). Specialize it for a type of your own, with these three functions and
/// `known`.
template <typename T>
struct BatchRows {
  static constexpr bool known = false;
};

namespace detail {

inline void check_same_rows(int64_t rows, int64_t others) {
  OSLO_CHECK(rows == others, "a batch has tensors of ", rows, " and of ", others,
             " rows, so that it cannot be divided over data ranks; stack samples along dimension "
             "0, or hand initialize oslo::divided(loader), whose batches are those of this rank");
}

}  // namespace detail

template <>
struct BatchRows<at::Tensor> {
  static constexpr bool known = true;
  static int64_t rows(const at::Tensor& batch) {
    OSLO_CHECK(batch.defined() && batch.dim() > 0,
               "a tensor of a batch has no dimension 0, along which it could be divided over data "
               "ranks");
    return batch.size(0);
  }
  static at::Tensor part(const at::Tensor& batch, int64_t start, int64_t length) {
    return batch.narrow(0, start, length);
  }
  /// Calls `see` for each tensor.
  template <typename See>
  static void each(const at::Tensor& batch, const See& see) {
    see(batch);
  }
};

template <typename... Ts>
struct BatchRows<std::tuple<Ts...>> {
  static constexpr bool known = (BatchRows<Ts>::known && ...);
  static int64_t rows(const std::tuple<Ts...>& batch) {
    int64_t rows = -1;
    std::apply([&](const Ts&... fields) { (same(BatchRows<Ts>::rows(fields), rows), ...); }, batch);
    return rows;
  }
  static std::tuple<Ts...> part(const std::tuple<Ts...>& batch, int64_t start, int64_t length) {
    return std::apply(
        [&](const Ts&... fields) {
          return std::tuple<Ts...>(BatchRows<Ts>::part(fields, start, length)...);
        },
        batch);
  }
  template <typename See>
  static void each(const std::tuple<Ts...>& batch, const See& see) {
    std::apply([&](const Ts&... fields) { (BatchRows<Ts>::each(fields, see), ...); }, batch);
  }

 private:
  static void same(int64_t seen, int64_t& rows) {
    if (rows >= 0) detail::check_same_rows(rows, seen);
    rows = seen;
  }
};

template <typename A, typename B>
struct BatchRows<std::pair<A, B>> {
  using Fields = BatchRows<std::tuple<A, B>>;
  static constexpr bool known = Fields::known;
  static int64_t rows(const std::pair<A, B>& batch) { return Fields::rows(batch); }
  static std::pair<A, B> part(const std::pair<A, B>& batch, int64_t start, int64_t length) {
    return {BatchRows<A>::part(batch.first, start, length),
            BatchRows<B>::part(batch.second, start, length)};
  }
  template <typename See>
  static void each(const std::pair<A, B>& batch, const See& see) {
    Fields::each(batch, see);
  }
};

template <typename Data, typename Target>
struct BatchRows<torch::data::Example<Data, Target>> {
  using Example = torch::data::Example<Data, Target>;
  static constexpr bool known = BatchRows<Data>::known && BatchRows<Target>::known;
  static int64_t rows(const Example& batch) {
    const int64_t rows = BatchRows<Data>::rows(batch.data);
    detail::check_same_rows(rows, BatchRows<Target>::rows(batch.target));
    return rows;
  }
  static Example part(const Example& batch, int64_t start, int64_t length) {
    return {BatchRows<Data>::part(batch.data, start, length),
            BatchRows<Target>::part(batch.target, start, length)};
  }
  template <typename See>
  static void each(const Example& batch, const See& see) {
    BatchRows<Data>::each(batch.data, see);
    BatchRows<Target>::each(batch.target, see);
  }
};

template <typename Data>
struct BatchRows<torch::data::Example<Data, void>> {
  using Example = torch::data::Example<Data, void>;
  static constexpr bool known = BatchRows<Data>::known;
  static int64_t rows(const Example& batch) { return BatchRows<Data>::rows(batch.data); }
  static Example part(const Example& batch, int64_t start, int64_t length) {
    return Example(BatchRows<Data>::part(batch.data, start, length));
  }
  template <typename See>
  static void each(const Example& batch, const See& see) {
    BatchRows<Data>::each(batch.data, see);
  }
};

/// Samples.
template <typename T>
struct BatchRows<std::vector<T>> {
  static constexpr bool known = true;
  static int64_t rows(const std::vector<T>& batch) { return static_cast<int64_t>(batch.size()); }
  static std::vector<T> part(const std::vector<T>& batch, int64_t start, int64_t length) {
    return {batch.begin() + start, batch.begin() + start + length};
  }
  template <typename See>
  static void each(const std::vector<T>& batch, const See& see) {
    if constexpr (BatchRows<T>::known) {
      for (const T& sample : batch) BatchRows<T>::each(sample, see);
    }
  }
};

/// Fields, as a PipelineSchedule takes them.
template <>
struct BatchRows<std::vector<at::Tensor>> {
  using Tensors = std::vector<at::Tensor>;
  static constexpr bool known = true;
  static int64_t rows(const Tensors& batch) {
    OSLO_CHECK(!batch.empty(), "a batch has no tensors");
    const int64_t rows = BatchRows<at::Tensor>::rows(batch.front());
    for (const at::Tensor& field : batch) {
      detail::check_same_rows(rows, BatchRows<at::Tensor>::rows(field));
    }
    return rows;
  }
  static Tensors part(const Tensors& batch, int64_t start, int64_t length) {
    Tensors part;
    for (const at::Tensor& field : batch) part.push_back(field.narrow(0, start, length));
    return part;
  }
  template <typename See>
  static void each(const Tensors& batch, const See& see) {
    for (const at::Tensor& field : batch) see(field);
  }
};

}  // namespace oslo
