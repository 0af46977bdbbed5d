#pragma once

#include <functional>
#include <string>
#include <vector>

#include "oslo_cpp/verify/rounding_noise.h"
#include "oslo_cpp/verify/run_model.h"

namespace oslo {

/// One operator that a model's own code called.
struct RecordedOperation {
  std::string name;
  std::string layer;
  std::vector<at::Tensor> results;
  double noise = 0;  ///< what rounding may leave in them; see rounding_noise.h

  bool like(const RecordedOperation& other) const {
    if (name != other.name || results.size() != other.results.size()) return false;
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i].sizes() != other.results[i].sizes()) return false;
    }
    return true;
  }
};

struct NamedValues {
  std::vector<std::string> names;
  std::vector<at::Tensor> values;  ///< whole; undefined: no gradient
  std::vector<double> noise;       ///< of each, where it was asked for
};

/// What a model came to.
struct RecordedRun {
  std::vector<at::Tensor> outputs;
  std::vector<double> output_noise;
  NamedValues buffers;
  NamedValues gradients;
};

/// The tensor with all its elements, without history.
at::Tensor detached_whole(const at::Tensor& tensor);

/// Runs a model once, as detail::RunModel says, and backward if `gradients`: from the sum of its
/// outputs under weights that are the same in every such run and alike nowhere. `seen` gets the
/// operators of the forward in order. The model's gradients and buffers are afterwards as before.
/// `noise` follows the rounding noise of the forward, of a model that is not cut; null: not asked.
RecordedRun run_recorded(torch::nn::Module& model, const detail::RunModel& run, bool gradients,
                         const std::function<void(RecordedOperation)>& seen,
                         RoundingNoise* noise = nullptr);

}  // namespace oslo
