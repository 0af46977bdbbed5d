#pragma once

#include <ATen/core/Tensor.h>
#include <torch/data/example.h>

#include <array>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "mpu/base/error.h"

namespace oslo {

/// The tensors of a batch, as a PipelineSchedule of an engine divides it: the model's inputs, of
/// which there are `inputs`, and the label behind them. For a LibTorch Example, a pair, a tuple or
/// an array of tensors, and a vector of two. Specialize it for a type of your own.
template <typename T>
struct StepBatch;

template <>
struct StepBatch<torch::data::Example<>> {
  static constexpr size_t inputs = 1;
  static std::vector<at::Tensor> tensors(const torch::data::Example<>& batch) {
    return {batch.data, batch.target};
  }
};

template <>
struct StepBatch<std::pair<at::Tensor, at::Tensor>> {
  static constexpr size_t inputs = 1;
  static std::vector<at::Tensor> tensors(const std::pair<at::Tensor, at::Tensor>& batch) {
    return {batch.first, batch.second};
  }
};

template <typename... Ts>
struct StepBatch<std::tuple<Ts...>> {
  static_assert(sizeof...(Ts) >= 2 && (std::is_same_v<Ts, at::Tensor> && ...),
                "a batch of a schedule has tensors: the model's inputs, and the label behind them");
  static constexpr size_t inputs = sizeof...(Ts) - 1;
  static std::vector<at::Tensor> tensors(const std::tuple<Ts...>& batch) {
    return std::apply([](const Ts&... each) { return std::vector<at::Tensor>{each...}; }, batch);
  }
};

template <size_t N>
struct StepBatch<std::array<at::Tensor, N>> {
  static_assert(N >= 2, "a batch of a schedule has the model's inputs, and the label behind them");
  static constexpr size_t inputs = N - 1;
  static std::vector<at::Tensor> tensors(const std::array<at::Tensor, N>& batch) {
    return {batch.begin(), batch.end()};
  }
};

template <>
struct StepBatch<std::vector<at::Tensor>> {
  static constexpr size_t inputs = 1;
  static std::vector<at::Tensor> tensors(const std::vector<at::Tensor>& batch) {
    OSLO_CHECK(batch.size() == 2, "a batch of ", batch.size(),
               " tensors, of which a schedule of an engine takes two, input and label; give more "
               "inputs as a std::tuple of tensors");
    return batch;
  }
};

}  // namespace oslo
