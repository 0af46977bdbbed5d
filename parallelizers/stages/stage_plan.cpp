#include "parallelizers/stages/stage_plan.h"

#include <algorithm>
#include <array>
#include <sstream>
#include <string_view>
#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/stages/model_layers.h"
#include "parallelizers/stages/stage_rule.h"

namespace oslo {
namespace {

bool has_word_of_last_stage(const std::string& path) {
  static constexpr std::array<std::string_view, 6> kWords{
      "head", "pooler", "final", "ln_f", "classifier", "output_projection"};
  return std::any_of(kWords.begin(), kWords.end(),
                     [&](std::string_view word) { return path.find(word) != std::string::npos; });
}

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

  StagePlaces parameters() const {
    StagePlaces found;
    for (const ParameterView& parameter : model_.parameters()) {
      found.emplace_back(parameter.path, stage_of(parameter.path, parameter.module));
    }
    return found;
  }

  StagePlaces buffers() const {
    StagePlaces found;
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
    if (layers_.empty() || (layer && layer->table)) return StageSet::of(0);
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
  OSLO_CHECK_AS(config, !wishes.layers || *wishes.layers == number, "'pipeline_num_layers' is ",
                wishes.layers.value_or(0), ", the model has ", layers_text(paths),
                "; set it to that number, or place modules by patterns: \"stages\": {\"",
                paths.empty() ? "module" : paths.front(), "\": 0}");
  OSLO_CHECK_AS(config, !wishes.ids || static_cast<int>(wishes.ids->size()) == number,
                wishes.ids_from, " has ", wishes.ids ? wishes.ids->size() : 0,
                " entries, the model has ", layers_text(paths), ": give one stage for each layer");
  for (int i = 0; wishes.ids && i < number; ++i) {
    OSLO_CHECK_AS(config, (*wishes.ids)[i] < wishes.stages, wishes.ids_from, " puts layer ", i,
                  " (", paths[i], ") on stage ", (*wishes.ids)[i], "; of ", wishes.stages,
                  " stages the last is ", wishes.stages - 1);
  }
  const bool placed = !wishes.patterns.empty() || !wishes.assigned.empty();
  OSLO_CHECK_AS(config, number >= wishes.stages || placed, "a pipeline of ", wishes.stages,
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

using Notes = std::vector<std::pair<std::string, int>>;

std::vector<int> stages_of(const std::vector<StagePlan::Layer>& layers) {
  std::vector<int> ids;
  for (const StagePlan::Layer& layer : layers) ids.push_back(layer.actual);
  return ids;
}

/// Before what goes with the layers is placed.
void place_layers(const Notes& notes, std::vector<StagePlan::Layer>& layers) {
  for (const auto& [path, stage] : notes) {
    for (StagePlan::Layer& layer : layers) {
      if (lies_in(layer.path, path)) layer.actual = stage;
    }
  }
}

void place_by_notes(const Notes& notes, StagePlaces& places) {
  for (const auto& [noted, stage] : notes) {
    for (auto& [path, place] : places) {
      if (lies_in(path, noted)) place = StageSet::of(stage);
    }
  }
}

std::string why(const StageWishes& wishes) {
  std::string text = "by " + (wishes.ids ? wishes.ids_from : "LiBai's rule");
  if (!wishes.balanced_by.empty()) text = "balanced by " + wishes.balanced_by;
  if (!wishes.assigned.empty()) text += ", then as modules were given stages";
  if (!wishes.patterns.empty()) text += ", then by patterns";
  return text;
}

}  // namespace

StagePlan plan_stages(const ModelView& model, const StageWishes& wishes) {
  StagePlan plan;
  plan.stages = wishes.stages;
  plan.layers = divided(model, wishes);
  plan.why = why(wishes);
  const Notes notes = wishes.assigned.stages(model, wishes.stages, stages_of(plan.layers));
  place_layers(notes, plan.layers);
  const Placing placing(model, plan.layers);
  StagePlaces parameters = placing.parameters(), buffers = placing.buffers();
  for (StagePlaces* places : {&parameters, &buffers}) place_by_notes(notes, *places);
  place_by_patterns(wishes.patterns, wishes.stages, parameters, buffers);
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
