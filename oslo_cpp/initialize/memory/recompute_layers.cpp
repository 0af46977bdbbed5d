#include "oslo_cpp/initialize/memory/recompute_layers.h"

#include <algorithm>
#include <string>

#include "mpu/base/error.h"
#include "oslo_cpp/initialize/memory/memory_budget.h"
#include "parallelizers/modules/path_components.h"
#include "parallelizers/stages/model_layers.h"

namespace oslo {
namespace {

std::vector<std::string> matching(const ModelView& model,
                                  const std::vector<std::string>& patterns) {
  std::vector<std::string> paths;
  std::vector<bool> met(patterns.size());
  for (const ModuleView& module : model.modules()) {
    if (module.path.empty()) continue;
    bool asked = false;
    for (size_t i = 0; i < patterns.size(); ++i) {
      const bool fits = matches_path(patterns[i], module.path);
      met[i] = met[i] || fits;
      asked |= fits;
    }
    if (!asked) continue;
    for (const std::string& other : paths) {
      OSLO_CHECK_AS(config, !lies_in(module.path, other),
                    "'activation_checkpoint.modules': ", module.path, " lies in ", other,
                    ", which matches, too; leave one of them out");
    }
    paths.push_back(module.path);
  }
  for (size_t i = 0; i < patterns.size(); ++i) {
    OSLO_CHECK_AS(config, met[i], "'activation_checkpoint.modules': \"", patterns[i],
                  "\" matches no module of the model; '*' stands for one path component, as in "
                  "\"h.*\"");
  }
  return paths;
}

}  // namespace

std::vector<SegmentLayers> segments_of(const ModelView& model, const ConfigValues& values) {
  const std::vector<std::string> layers = values.activation_modules.empty()
                                              ? pipeline_layers(model)
                                              : matching(model, values.activation_modules);
  std::vector<SegmentLayers> segments;
  int layers_in_last = values.activation_every;
  for (const std::string& path : layers) {
    std::vector<at::Tensor> parameters;
    for (const NamedTensor& parameter : model.in_use()) {
      if (lies_in(parameter.name, path)) parameters.push_back(parameter.tensor);
    }
    if (parameters.empty()) continue;
    if (layers_in_last == values.activation_every) {
      segments.push_back({path, {}});
      layers_in_last = 0;
    } else {
      std::string& name = segments.back().name;
      name = name.substr(0, name.find(' ')) + " to " + path;
    }
    ++layers_in_last;
    auto& all = segments.back().parameters;
    all.insert(all.end(), parameters.begin(), parameters.end());
  }
  OSLO_CHECK_AS(config, !segments.empty(),
                "'activation_checkpoint': no layer of the model has a "
                "parameter, so that there is nothing to compute again; name some by 'modules', or "
                "set 'enabled' to false");
  return segments;
}

std::shared_ptr<LayerSegments> layer_segments(const ModelView& model, const ConfigValues& values,
                                              int64_t memory_limit, at::Device device) {
  CheckpointOptions options;
  if (!values.activation_keep.empty()) options.keep(values.activation_keep);
  options.keep_at_most(values.activation_keep_at_most);
  const std::vector<SegmentLayers> segments = segments_of(model, values);
  const int64_t bytes = memory_budget(values, memory_limit);
  return std::make_shared<LayerSegments>(
      segments, options, bytes == 0 ? nullptr : segment_budget(bytes, segments, model, device));
}

}  // namespace oslo
