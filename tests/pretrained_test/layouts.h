#pragma once

#include <oslo_cpp/oslo.h>

#include <functional>
#include <string>

#include "tests/pretrained_test/families.h"

namespace oslo::pretrained_test {

struct Ranks {
  int tensor = 1, pipeline = 1;
};

constexpr Ranks kLayouts[] = {{1, 1}, {2, 1}, {2, 2}};

inline std::string to_string(const Ranks& ranks) {
  return "tensor " + std::to_string(ranks.tensor) + " x pipeline " + std::to_string(ranks.pipeline);
}

/// `body` on every rank of `layout` with a model of `config`, initialized, with the weights it was
/// made with.
inline void on_layout(const Ranks& layout, const Family& family, const nlohmann::json& config,
                      const StateDict& inputs,
                      const std::function<void(const ParallelModel&, const ModulePtr&)>& body,
                      torch::Dtype dtype = torch::kFloat) {
  run_as_threads(layout.tensor * layout.pipeline, [&](World world) {
    at::set_num_threads(1);
    const ModulePtr model = family.make(config);
    if (dtype != torch::kFloat)
      model->to(dtype);  // integers of Python's buffers stay what they are
    InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { family.forward(*model, inputs); };
    const nlohmann::json parallel = {{"model_parallelism",
                                      {{"enable", true},
                                       {"tensor_parallel_size", layout.tensor},
                                       {"pipeline_parallel_size", layout.pipeline}}}};
    body(initialize(model, Config::from_json(parallel), how), model);
  });
}

/// The logits of a cut model, the same on every rank.
inline torch::Tensor whole_logits(const Family& family, torch::nn::Module& model,
                                  const StateDict& inputs) {
  const torch::NoGradGuard no_grad;
  return full_tensor(family.forward(model, inputs));
}

}  // namespace oslo::pretrained_test
