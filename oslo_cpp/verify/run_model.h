#pragma once

#include <torch/nn/module.h>

#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "mpu/base/error.h"
#include "parallelizers/modules/output_tensors.h"

namespace oslo::detail {

/// A forward, and its outputs.
using RunModel = std::function<std::vector<at::Tensor>(torch::nn::Module&)>;

template <typename Output>
std::vector<at::Tensor> tensors_of(const Output& output) {
  static_assert(OutputTensors<Output>::known, "verify: no tensors known in what forward returns");
  std::vector<at::Tensor> tensors;
  collect_tensors(output, tensors);
  return tensors;
}

/// model.forward(inputs[0], inputs[1], ...), if it takes as many tensors.
template <typename Impl, size_t... I>
bool run_forward(Impl& model, const std::vector<at::Tensor>& inputs, std::index_sequence<I...>,
                 std::vector<at::Tensor>& outputs) {
  if constexpr (requires { model.forward(inputs[I]...); }) {
    if (inputs.size() != sizeof...(I)) return false;
    outputs = tensors_of(model.forward(inputs[I]...));
    return true;
  }
  return false;
}

/// `how` is a function of the model; or its only input, or a vector of its inputs.
template <typename Impl, typename How>
std::vector<at::Tensor> run_on(Impl& model, const How& how) {
  if constexpr (std::is_invocable_v<const How&, Impl&>) {
    return tensors_of(how(model));
  } else if constexpr (requires { model.forward(how); }) {
    return tensors_of(model.forward(how));
  } else {
    std::vector<at::Tensor> inputs, outputs;
    if constexpr (std::is_convertible_v<const How&, at::Tensor>) {
      inputs = {how};
    } else {
      inputs = how;
    }
    const bool known = [&]<size_t... N>(std::index_sequence<N...>) {
      return (run_forward(model, inputs, std::make_index_sequence<N>(), outputs) || ...);
    }
    (std::make_index_sequence<9>());
    OSLO_CHECK(known, "verify: this model's forward does not take ", inputs.size(),
               " tensors; hand verify a function that calls it");
    return outputs;
  }
}

}  // namespace oslo::detail
