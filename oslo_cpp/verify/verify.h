#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "oslo_cpp/model/parallel_model.h"
#include "oslo_cpp/verify/comparison.h"
#include "oslo_cpp/verify/run_model.h"

namespace oslo {

struct VerifyOptions {
  /// Largest error, as a fraction of the reference's largest value; 0: by dtype, see `compare`.
  double tolerance = 0;
  /// Whether to run backward too, from a fixed weighting of the outputs.
  bool gradients = true;
};

namespace detail {

Verification verify_modules(const ParallelModel& parallel,
                            const std::shared_ptr<torch::nn::Module>& reference,
                            const RunModel& run, const VerifyOptions& options);

}  // namespace detail

/// Ground truth on demand: runs the parallel model and `reference`, the same model as it was before
/// `initialize` (a second instance of the same seed, say), and compares them: every weight, every
/// operator that their code calls, outputs, buffers and gradients. Where they differ, the result
/// names the first operator that did and the layer it belongs to.
///
/// `reference` is a module holder or a shared pointer. `inputs` is the tensor or the vector of
/// tensors that its forward takes, one by one or as they are, or a function that calls it:
///
///   oslo::verify(parallel, reference, tokens)
///   oslo::verify(parallel, reference, {tokens, mask})
///   oslo::verify(parallel, reference, [&](auto& model) { return model.forward(tokens, true); })
///
/// Call it on every rank, with the same `inputs`; the ranks of a data-parallel group may be
/// given different ones. Both models run from the same random state and in their present mode,
/// training or evaluation; afterwards parameters, their gradients, buffers and random states are as
/// before. (Dropout under RandomMode::per_rank draws other numbers than one device and differs.)
/// Call it before the model is wrapped in DistributedDataParallel. It keeps a copy of everything
/// the reference's forward computes, and gathers everything cut: meant for a small batch, not for
/// every step.
///
/// Throws `Error` on every rank when the two are not the same model (class, names of parameters,
/// training mode) or when the reference is parallel itself; what the reference's forward
/// throws becomes an `Error` on every rank, what the parallel one throws is thrown on. Ranks of one
/// model that were given different inputs are named, as under `OSLO_CHECK=1`
/// (mpu/group/rank_check.h).
template <typename Impl, typename Inputs>
Verification verify(const ParallelModel& parallel, const std::shared_ptr<Impl>& reference,
                    const Inputs& inputs, const VerifyOptions& options = {}) {
  const auto run = [&](torch::nn::Module& model) {
    if constexpr (std::is_same_v<Impl, torch::nn::Module>) {
      return detail::run_on(model, inputs);
    } else {
      return detail::run_on(dynamic_cast<Impl&>(model), inputs);
    }
  };
  parallel.module_as<Impl>();  // throws, naming both classes
  return detail::verify_modules(parallel, reference, run, options);
}

template <typename Impl>
Verification verify(const ParallelModel& parallel, const std::shared_ptr<Impl>& reference,
                    std::initializer_list<at::Tensor> inputs, const VerifyOptions& options = {}) {
  return verify(parallel, reference, std::vector<at::Tensor>(inputs), options);
}

template <typename Impl, typename Inputs>
Verification verify(const ParallelModel& parallel, const torch::nn::ModuleHolder<Impl>& reference,
                    const Inputs& inputs, const VerifyOptions& options = {}) {
  return verify(parallel, reference.ptr(), inputs, options);
}

template <typename Impl>
Verification verify(const ParallelModel& parallel, const torch::nn::ModuleHolder<Impl>& reference,
                    std::initializer_list<at::Tensor> inputs, const VerifyOptions& options = {}) {
  return verify(parallel, reference.ptr(), std::vector<at::Tensor>(inputs), options);
}

}  // namespace oslo
