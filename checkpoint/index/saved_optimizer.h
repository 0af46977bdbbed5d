#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace oslo {

class JsonNode;

/// What a checkpoint's index says of an optimizer. The tensors of its states lie in the files under
/// `optimizer_key`, cut as their parameters are, and the index lists them like any tensor.
///
///   "optimizer": {"kind": "AdamW",
///     "groups": [{"options": {"lr": 0.001, ...}, "parameters": ["wte.weight", ...]}, ...],
///     "states": {"wte.weight": {"numbers": {"step": 5}, "tensors": ["exp_avg", "exp_avg_sq"]}}}
///
/// A parameter that was never stepped has no state.
struct SavedOptimizer {
  using Numbers = std::map<std::string, double>;
  struct Group {
    Numbers options;
    std::vector<std::string> parameters;  ///< those that the model computes with, in order
  };
  struct State {
    Numbers numbers;
    std::vector<std::string> tensors;
    bool operator==(const State&) const = default;
  };

  std::string kind;  ///< "AdamW"
  std::vector<Group> groups;
  std::map<std::string, State> states;  ///< by the parameter's name
};

/// The name in the files of a tensor that belongs to a parameter's state:
/// "optimizer/exp_avg/wte.weight".
std::string optimizer_key(const std::string& tensor, const std::string& parameter);

/// Whether a tensor of that name in a file is an optimizer's.
bool is_optimizer_key(const std::string& name);

/// Throws `Error` for numbers that JSON has not: infinities and NaN.
nlohmann::json to_json(const SavedOptimizer& optimizer);
nlohmann::json to_json(const std::map<std::string, SavedOptimizer::State>& states);

/// Throw `Error` naming the entry where one is missing or of another type.
SavedOptimizer read_optimizer(const JsonNode& node);
std::map<std::string, SavedOptimizer::State> read_states(const JsonNode& node);

}  // namespace oslo
