#include "oslo_cpp/explain/sections.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include "parallelizers/modules/path_components.h"

namespace oslo {
namespace {

bool is_number(const std::string& component) {
  return !component.empty() &&
         std::ranges::all_of(component, [](unsigned char c) { return c >= '0' && c <= '9'; });
}

/// The outermost numbered layer that a module lies in: "h.0" of "h.0.attn"; the module itself where
/// there is none.
std::string layer_of(const std::string& module) {
  std::string path;
  for (const std::string& component : path_components(module)) {
    path += (path.empty() ? "" : ".") + component;
    if (is_number(component)) break;
  }
  return path;
}

/// "h.*" of "h.0".
std::string any_of(const std::string& layer) {
  const size_t dot = layer.rfind('.');
  const std::string last = dot == std::string::npos ? layer : layer.substr(dot + 1);
  return is_number(last) ? (dot == std::string::npos ? "" : layer.substr(0, dot + 1)) + "*" : layer;
}

void replace_path(std::string& text, const std::string& path, const std::string& by) {
  if (path.empty()) return;
  size_t from = 0;
  while ((from = text.find(path, from)) != std::string::npos) {
    const size_t end = from + path.size();
    const bool begins = from == 0 || text[from - 1] == ' ' || text[from - 1] == '(';
    const bool ends = end == text.size() || text[end] == '.' || text[end] == ' ';
    if (begins && ends) text.replace(from, path.size(), by);
    from += begins && ends ? by.size() : 1;
  }
}

ExplainedCall any_layers(ExplainedCall call, const std::string& layer) {
  const std::string any = any_of(layer);
  replace_path(call.module, layer, any);
  for (auto* const values : {&call.operands, &call.results}) {
    for (ExplainedValue& value : *values) {
      replace_path(value.name, layer, any);
      for (ExplainedValue::Cut& cut : value.cuts) replace_path(cut.from, layer, any);
    }
  }
  for (std::string& reason : call.gathers) replace_path(reason, layer, any);
  for (ExplainedMove& move : call.moves) replace_path(move.why, layer, any);
  return call;
}

}  // namespace

Traffic ExplainedSection::moved() const {
  Traffic sum;
  for (const ExplainedCall& call : calls) {
    for (const ExplainedMove& move : call.moves) sum += {1, move.elements, move.bytes};
  }
  return sum;
}

std::vector<ExplainedSection> sections_of(const Explanation& explanation) {
  struct Layer {
    std::string path;
    std::vector<ExplainedCall> calls, any;
  };
  std::vector<Layer> layers;
  for (const ExplainedCall& call : explanation.calls) {
    const std::string path = layer_of(call.module);
    if (layers.empty() || layers.back().path != path) layers.push_back({path, {}, {}});
    layers.back().calls.push_back(call);
    layers.back().any.push_back(any_layers(call, path));
  }
  std::vector<ExplainedSection> sections;
  for (size_t i = 0; i < layers.size();) {
    size_t end = i + 1;
    while (end < layers.size() && any_of(layers[end].path) == any_of(layers[i].path) &&
           layers[end].any == layers[i].any) {
      ++end;
    }
    const bool many = end - i > 1;
    ExplainedSection& section = sections.emplace_back();
    section.layers = static_cast<int>(end - i);
    section.title = layers[i].path.empty() ? "the model" : layers[i].path;
    if (many) section.title += " to " + layers[end - 1].path + ", alike";
    section.calls = std::move(many ? layers[i].any : layers[i].calls);
    i = end;
  }
  return sections;
}

std::vector<ExplainedTotal> totals_of(const Explanation& explanation) {
  std::map<std::tuple<std::string, bool, std::string>, Traffic> sums;
  const auto add = [&](const std::vector<ExplainedMove>& moves) {
    for (const ExplainedMove& move : moves) {
      sums[{move.group, move.backward, move.collective}] += {1, move.elements, move.bytes};
    }
  };
  for (const ExplainedCall& call : explanation.calls) add(call.moves);
  add(explanation.outside);
  std::vector<ExplainedTotal> totals;
  for (const auto& [of, traffic] : sums) {
    totals.push_back({std::get<0>(of), std::get<2>(of), std::get<1>(of), traffic});
  }
  return totals;
}

std::vector<ExplainedRepeat> repeats_of(const std::vector<ExplainedMove>& moves) {
  std::vector<ExplainedRepeat> repeats;
  for (const ExplainedMove& move : moves) {
    const auto same = std::ranges::find(repeats, move, &ExplainedRepeat::move);
    if (same == repeats.end()) {
      repeats.push_back({move, 1});
    } else {
      ++same->times;
    }
  }
  return repeats;
}

std::vector<ExplainedAlike> alike_of(const std::vector<ExplainedValue>& values) {
  std::vector<ExplainedAlike> alike;
  for (const ExplainedValue& value : values) {
    if (!alike.empty() && alike.back().value == value) {
      ++alike.back().times;
    } else {
      alike.push_back({value, 1});
    }
  }
  return alike;
}

std::string short_name(const std::string& operation) {
  constexpr std::string_view kLibTorch = "aten::";
  return operation.starts_with(kLibTorch) ? operation.substr(kLibTorch.size()) : operation;
}

std::string shape_text(const std::vector<int64_t>& shape, int64_t times) {
  std::string text;
  for (const int64_t size : shape) text += c10::str(text.empty() ? "" : ", ", size);
  return c10::str(times == 1 ? "" : c10::str(times, " x "), "[", text, "]");
}

}  // namespace oslo
