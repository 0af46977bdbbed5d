#pragma once

#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <string>
#include <vector>

#include "tests/support/pipeline_parity.h"

namespace catalogue {

/// Every module with parameters on the stage that its place in the list of all gives it: also where
/// the model has fewer layers than there are stages.
inline std::string spread(const torch::nn::Module& model, const pipeline_parity::Grid& grid) {
  std::vector<std::string> names;
  for (const auto& item : model.named_parameters()) {
    const std::string& path = item.key();
    const size_t dot = path.rfind('.');
    // What the root itself registered goes on its own: its path is none that a pattern could have.
    const std::string module = dot == std::string::npos ? path : path.substr(0, dot);
    if (names.empty() || names.back() != module) names.push_back(module);
  }
  std::string patterns;
  for (size_t i = 0; i < names.size(); ++i) {
    patterns += c10::str(i == 0 ? "" : ", ", "\"", names[i],
                         "\": ", i * static_cast<size_t>(grid.pipeline) / names.size());
  }
  return c10::str(R"({"parallel": {"data": )", grid.data, R"(, "pipeline": )", grid.pipeline,
                  R"(, "tensor": {"size": )", grid.tensor, R"(, "mode": "1d"}}, "stages": {)",
                  patterns, "}}");
}

}  // namespace catalogue
