#include "checkpoint/index/saved_optimizer.h"

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "checkpoint/formats/json/json_node.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

using Json = nlohmann::json;
using Numbers = SavedOptimizer::Numbers;

constexpr std::string_view kPrefix = "optimizer/";
/// Above it not every whole number is a double.
constexpr double kMostWhole = 9007199254740992.0;

Json to_json(const Numbers& numbers) {
  Json json = Json::object();
  for (const auto& [name, value] : numbers) {
    OSLO_CHECK(std::isfinite(value), "the optimizer's '", name, "' is ", value,
               ", which no checkpoint can hold; use a finite number");
    const bool whole = value == std::trunc(value) && std::abs(value) <= kMostWhole;
    json[name] = whole ? Json(static_cast<int64_t>(value)) : Json(value);
  }
  return json;
}

Numbers read_numbers(const JsonNode& node) {
  Numbers numbers;
  for (const auto& [name, value] : node.items()) numbers[name] = value.real();
  return numbers;
}

}  // namespace

std::string optimizer_key(const std::string& tensor, const std::string& parameter) {
  return c10::str(kPrefix, tensor, "/", parameter);
}

bool is_optimizer_key(const std::string& name) {
  return name.starts_with(kPrefix);
}

Json to_json(const std::map<std::string, SavedOptimizer::State>& states) {
  Json json = Json::object();
  for (const auto& [parameter, state] : states) {
    json[parameter] = {{"numbers", to_json(state.numbers)}, {"tensors", state.tensors}};
  }
  return json;
}

Json to_json(const SavedOptimizer& optimizer) {
  Json groups = Json::array();
  for (const SavedOptimizer::Group& group : optimizer.groups) {
    groups.push_back({{"options", to_json(group.options)}, {"parameters", group.parameters}});
  }
  return {{"kind", optimizer.kind},
          {"groups", std::move(groups)},
          {"states", to_json(optimizer.states)}};
}

std::map<std::string, SavedOptimizer::State> read_states(const JsonNode& node) {
  std::map<std::string, SavedOptimizer::State> states;
  for (const auto& [parameter, state] : node.items()) {
    states[parameter] = {read_numbers(state["numbers"]), state["tensors"].texts()};
  }
  return states;
}

SavedOptimizer read_optimizer(const JsonNode& node) {
  SavedOptimizer optimizer{node["kind"].text(), {}, read_states(node["states"])};
  for (const JsonNode& group : node["groups"].list()) {
    optimizer.groups.push_back({read_numbers(group["options"]), group["parameters"].texts()});
  }
  return optimizer;
}

}  // namespace oslo
