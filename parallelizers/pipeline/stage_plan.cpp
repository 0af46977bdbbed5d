#include "parallelizers/pipeline/stage_plan.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>

#include "mpu/error.h"
#include "parallelizers/modules/path_components.h"
#include "parallelizers/pipeline/model_layers.h"
#include "parallelizers/pipeline/stage_rule.h"

namespace oslo {
namespace {

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 10 &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// "*", "0-5" or a name.
bool matches_component(const std::string& wanted, const std::string& part) {
  if (wanted == "*" || wanted == part) return true;
  const size_t dash = wanted.find('-');
  if (dash == std::string::npos || !is_number(part)) return false;
  const std::string first = wanted.substr(0, dash), last = wanted.substr(dash + 1);
  if (!is_number(first) || !is_number(last)) return false;
  return std::stoi(first) <= std::stoi(part) && std::stoi(part) <= std::stoi(last);
}

/// Whether the path is what the pattern says, or lies beneath that.
bool matches(const std::string& pattern, const std::string& path) {
  const auto wanted = path_components(pattern), parts = path_components(path);
  if (wanted.size() > parts.size()) return false;
  return std::equal(wanted.begin(), wanted.end(), parts.begin(), matches_component);
}

bool has_word_of_last_stage(const std::string& path) {
  static constexpr std::array<std::string_view, 6> kWords{
      "head", "pooler", "final", "ln_f", "classifier", "output_projection"};
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](std::string_view word) { return path.find(word) != std::string::npos; });
}

using Places = std::vector<std::pair<std::string, StageSet>>;

/// The stages that parameters and buffers have by their modules' places in the tree.
class Placing {
 public:
  Placing(const ModelView& model, const std::vector<StagePlan::Layer>& layers)
      : model_(model), layers_(layers) {
    size_t behind = 0;
    for (const ModuleView& module : model.modules()) {
      for (size_t i = behind; i < layers.size(); ++i) {
        if (lies_in(module.path, layers[i].path)) behind = i + 1;
      }
      behind_.push_back(behind);
    }
  }

  Places parameters() const {
    Places found;
    for (const ParameterView& parameter : model_.parameters()) {
      found.emplace_back(parameter.path, stage_of(parameter.path, parameter.module));
    }
    return found;
  }

  Places buffers() const {
    Places found;
    for (const BufferView& buffer : model_.buffers()) {
      found.emplace_back(buffer.path, stage_of(buffer.path, module_of(buffer.path)));
    }
    return found;
  }

 private:
  StageSet stage_of(const std::string& path, size_t module) const {
    for (const StagePlan::Layer& layer : layers_) {
      if (lies_in(path, layer.path)) return StageSet::of(layer.actual);
    }
    const auto& layer = model_.modules()[module].layer;
    if (layers_.empty() || (layer && layer->kind == LayerKind::embedding)) return StageSet::of(0);
    return StageSet::of(beside(path, behind_[module]));
  }

  /// Of what is in no layer, and comes after `behind` of them: with the layers of the innermost
  /// module around it that has some.
  int beside(const std::string& path, size_t behind) const {
    size_t begin = 0, end = 0;
    for (std::string scope = path; end == 0;) {
      const size_t dot = scope.rfind('.');
      scope = dot == std::string::npos ? "" : scope.substr(0, dot);
      for (size_t i = 0; i < layers_.size(); ++i) {
        if (!lies_in(layers_[i].path, scope)) continue;
        if (end == 0) begin = i;
        end = i + 1;
      }
    }
    const bool first = behind <= begin;
    if (first && !has_word_of_last_stage(path)) return layers_[begin].actual;
    return layers_[(first || behind > end ? end : behind) - 1].actual;
  }

  size_t module_of(const std::string& tensor) const {
    const size_t dot = tensor.rfind('.');
    const std::string path = dot == std::string::npos ? "" : tensor.substr(0, dot);
    for (size_t i = 0; i < model_.modules().size(); ++i) {
      if (model_.modules()[i].path == path) return i;
    }
    return 0;
  }

  const ModelView& model_;
  const std::vector<StagePlan::Layer>& layers_;
  std::vector<size_t> behind_;  ///< by module: how many layers come before it
};

std::string layers_text(const std::vector<std::string>& paths) {
  if (paths.empty()) return "no layers";
  return c10::str(paths.size(), paths.size() == 1 ? " layer (" : " layers (", paths.front(),
                  paths.size() > 2   ? " to " + paths.back()
                  : paths.size() > 1 ? ", " + paths.back()
                                     : "",
                  ")");
}

std::vector<StagePlan::Layer> divided(const ModelView& model, const StageWishes& wishes) {
  const std::vector<std::string> paths = pipeline_layers(model, wishes.layers);
  const auto number = static_cast<int>(paths.size());
  OSLO_CHECK(!wishes.layers || *wishes.layers == number, "'pipeline_num_layers' is ",
             wishes.layers.value_or(0), ", the model has ", layers_text(paths),
             "; set it to that number, or place modules by patterns: \"stages\": {\"",
             paths.empty() ? "module" : paths.front(), "\": 0}");
  OSLO_CHECK(!wishes.ids || static_cast<int>(wishes.ids->size()) == number,
             "'custom_pipeline_stage_id' has ", wishes.ids ? wishes.ids->size() : 0,
             " entries, the model has ", layers_text(paths), ": give one stage for each layer");
  OSLO_CHECK(number >= wishes.stages || !wishes.patterns.empty(), "a pipeline of ", wishes.stages,
             " stages needs as many layers, the model has ", layers_text(paths),
             "; use fewer stages, or place modules by patterns: \"stages\": {\"module\": 0}");
  std::vector<int> ids;
  if (number >= wishes.stages) {
    ids = automatic_stages(number, wishes.stages);
  } else {
    for (int i = 0; i < number; ++i) ids.push_back(i);
  }
  std::vector<StagePlan::Layer> layers;
  for (int i = 0; i < number; ++i) {
    layers.push_back({paths[i], ids[i], wishes.ids ? (*wishes.ids)[i] : ids[i]});
  }
  return layers;
}

using Patterns = std::vector<std::pair<std::string, std::vector<int>>>;

/// The weakest first.
Patterns ordered(Patterns patterns) {
  const auto strength = [](const std::string& pattern) {
    return std::pair(path_components(pattern).size(),
                     -std::count(pattern.begin(), pattern.end(), '*'));
  };
  std::stable_sort(patterns.begin(), patterns.end(), [&](const auto& a, const auto& b) {
    return strength(a.first) < strength(b.first);
  });
  return patterns;
}

void place_by_patterns(const StageWishes& wishes, Places& parameters, Places& buffers) {
  for (const auto& [pattern, stages] : ordered(wishes.patterns)) {
    StageSet set;
    for (const int stage : stages) {
      OSLO_CHECK(stage < wishes.stages, "stages pattern \"", pattern, "\" names stage ", stage,
                 ", the pipeline has ", wishes.stages,
                 wishes.stages == 1 ? " stage; set the pipeline size" : " stages, counted from 0");
      set = set | StageSet::of(stage);
    }
    bool found = false;
    for (Places* places : {&parameters, &buffers}) {
      for (auto& [path, place] : *places) {
        if (!matches(pattern, path)) continue;
        place = set;
        found = true;
      }
    }
    OSLO_CHECK(found, "stages pattern \"", pattern,
               "\" matches no parameter or buffer of the model (* stands for one component of a "
               "path, 0-5 for a number from 0 to 5)",
               parameters.empty() ? "" : "; the first one is \"" + parameters.front().first + "\"");
  }
}

}  // namespace

StagePlan plan_stages(const ModelView& model, const StageWishes& wishes) {
  StagePlan plan;
  plan.layers = divided(model, wishes);
  const Placing placing(model, plan.layers);
  Places parameters = placing.parameters(), buffers = placing.buffers();
  place_by_patterns(wishes, parameters, buffers);
  for (size_t i = 0; i < parameters.size(); ++i) {
    const ParameterView& parameter = model.parameters()[i];
    plan.tensors.add(parameter.in_use(), parameters[i].second);
    if (!parameter.registered.is_same(parameter.in_use())) {
      plan.tensors.add(parameter.registered, parameters[i].second);
    }
  }
  for (size_t i = 0; i < buffers.size(); ++i) {
    plan.tensors.add(model.buffers()[i].tensor, buffers[i].second);
  }
  for (StagePlan::Layer& layer : plan.layers) {
    const auto first = std::find_if(parameters.begin(), parameters.end(), [&](const auto& place) {
      return lies_in(place.first, layer.path);
    });
    if (first != parameters.end()) layer.actual = first->second.first();
  }
  return plan;
}

std::string StagePlan::to_string(const ModelView& model) const {
  std::ostringstream text;
  for (const ParameterView& parameter : model.parameters()) {
    text << parameter.path << ": " << tensors.of(parameter.in_use()).to_string() << "\n";
  }
  for (const BufferView& buffer : model.buffers()) {
    text << buffer.path << ": " << tensors.of(buffer.tensor).to_string() << "\n";
  }
  return text.str();
}

}  // namespace oslo
