#include "oslo_cpp/explain/explanation.h"

#include <c10/util/StringUtil.h>

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace oslo {
namespace {

using Json = nlohmann::json;

Json json_of(const ExplainedValue& value) {
  Json cuts = Json::array();
  for (const ExplainedValue::Cut& cut : value.cuts) {
    cuts.push_back({{"axis", cut.axis},
                    {"dim", cut.dim},
                    {"sizes", cut.sizes},
                    {"stretches", cut.stretches},
                    {"from", cut.from}});
  }
  Json json = {{"type", value.type},
               {"shape", value.shape},
               {"local_shape", value.local_shape},
               {"placement", value.placement()},
               {"gradient", value.gradient_placement()},
               {"cuts", std::move(cuts)}};
  if (!value.name.empty()) json["parameter"] = value.name;
  return json;
}

Json json_of(const std::vector<ExplainedValue>& values) {
  Json all = Json::array();
  for (const ExplainedValue& value : values) all.push_back(json_of(value));
  return all;
}

Json json_of(const std::vector<ExplainedMove>& moves) {
  Json all = Json::array();
  for (const ExplainedMove& move : moves) {
    all.push_back({{"group", move.group},
                   {"collective", move.collective},
                   {"rule", move.rule},
                   {"why", move.why},
                   {"direction", move.backward ? "backward" : "forward"},
                   {"elements", move.elements},
                   {"bytes", move.bytes}});
  }
  return all;
}

template <typename Visit>
void for_each_move(const Explanation& explanation, const Visit& visit) {
  for (const ExplainedCall& call : explanation.calls) {
    for (const ExplainedMove& move : call.moves) visit(move);
  }
  for (const ExplainedMove& move : explanation.outside) visit(move);
}

}  // namespace

std::string ExplainedValue::placement() const {
  std::string text;
  for (const Cut& cut : cuts) {
    text += c10::str(text.empty() ? "" : "; ", "dim ", cut.dim, " over ", cut.axis, ": ");
    for (size_t i = 0; i < cut.sizes.size(); ++i) text += c10::str(i == 0 ? "" : "+", cut.sizes[i]);
    if (cut.stretches > 1) text += c10::str(" in ", cut.stretches, " stretches");
  }
  if (!partial.empty()) text += (text.empty() ? "" : "; ") + ("partial sum over " + partial);
  return text.empty() ? "whole" : text;
}

std::string ExplainedValue::gradient_placement() const {
  if (!gradient) return "none";
  ExplainedValue summed = *this;
  summed.partial.clear();
  return summed.placement();
}

Traffic Explanation::total(const std::string& group, const std::string& collective) const {
  Traffic sum;
  for_each_move(*this, [&](const ExplainedMove& move) {
    if (!group.empty() && move.group != group) return;
    if (!collective.empty() && move.collective != collective) return;
    sum += {1, move.elements, move.bytes};
  });
  return sum;
}

Json Explanation::to_json() const {
  Json json = {{"of", of}, {"rank", rank}, {"note", note}, {"outside", json_of(outside)}};
  json["calls"] = Json::array();
  for (const ExplainedCall& call : calls) {
    json["calls"].push_back({{"module", call.module},
                             {"of_module", call.of_module},
                             {"operator", call.operation},
                             {"operands", json_of(call.operands)},
                             {"results", json_of(call.results)},
                             {"moved", json_of(call.moves)},
                             {"gathers", call.gathers}});
  }
  std::map<std::pair<std::string, std::string>, Traffic> sums;
  for_each_move(*this, [&](const ExplainedMove& move) {
    sums[{move.group, move.collective}] += {1, move.elements, move.bytes};
  });
  json["totals"] = Json::array();
  for (const auto& [of, sum] : sums) {
    json["totals"].push_back({{"group", of.first},
                              {"collective", of.second},
                              {"calls", sum.calls},
                              {"elements", sum.elements},
                              {"bytes", sum.bytes}});
  }
  return json;
}

}  // namespace oslo
