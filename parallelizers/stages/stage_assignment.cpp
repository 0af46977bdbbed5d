#include "parallelizers/stages/stage_assignment.h"

#include <algorithm>

#include "mpu/base/error.h"
#include "parallelizers/modules/layer_idx.h"
#include "parallelizers/modules/module_tree.h"

namespace oslo {

StageAssignment& StageAssignment::set_pipeline_stage_id(
    const std::shared_ptr<torch::nn::Module>& module, int stage) {
  OSLO_CHECK(module, "set_pipeline_stage_id: the module is null");
  return add({module, {}, stage, false});
}

StageAssignment& StageAssignment::set_pipeline_stage_id(const at::Tensor& tensor, int stage) {
  OSLO_CHECK(tensor.defined(), "set_pipeline_stage_id: the tensor is not defined");
  return add({nullptr, tensor, stage, false});
}

StageAssignment& StageAssignment::set_layer_idx(const std::shared_ptr<torch::nn::Module>& module,
                                                int layer_idx) {
  OSLO_CHECK(module, "set_layer_idx: the module is null");
  return add({module, {}, layer_idx, true});
}

StageAssignment& StageAssignment::set_layer_idx(const at::Tensor& tensor, int layer_idx) {
  OSLO_CHECK(tensor.defined(), "set_layer_idx: the tensor is not defined");
  return add({nullptr, tensor, layer_idx, true});
}

StageAssignment& StageAssignment::add(const StageAssignment& other, By by) {
  for (Note note : other.notes_) {
    note.by = by;
    add(std::move(note));
  }
  return *this;
}

StageAssignment& StageAssignment::add(Note note) {
  std::erase_if(notes_, [&](const Note& other) {
    return note.module ? other.module == note.module
                       : !other.module && other.tensor.is_same(note.tensor);
  });
  notes_.push_back(std::move(note));
  return *this;
}

/// Several where it is registered more than once.
std::vector<std::string> StageAssignment::Note::paths_in(const ModelView& model) const {
  std::vector<std::string> paths;
  if (module) {
    for (const ModuleView& each : model.modules()) {
      if (each.module == module) paths.push_back(each.path);
    }
    return paths;
  }
  for (const ParameterView& parameter : model.parameters()) {
    const at::Tensor& registered = parameter.registered;
    const bool same =
        parameter.in_use().is_same(tensor) || (registered.defined() && registered.is_same(tensor));
    if (same) paths.push_back(parameter.path);
  }
  for (const BufferView& buffer : model.buffers()) {
    if (buffer.tensor.is_same(tensor)) paths.push_back(buffer.path);
  }
  return paths;
}

const char* StageAssignment::Note::who() const {
  switch (by) {
    case By::layer_idx:
      return "layer_idx of a module: ";
    case By::model_class:
      return "set_pipeline_stage_id of the model's class: ";
    case By::options:
      break;
  }
  return "InitializeOptions::stages: ";
}

std::string StageAssignment::Note::to_string(const std::string& path) const {
  return c10::str(layer ? "set_layer_idx(" : "set_pipeline_stage_id(",
                  path.empty() ? "the model" : path, ", ", number, ")");
}

int StageAssignment::Note::stage(const std::string& path, int stages,
                                 const std::vector<int>& layers) const {
  const auto count = layer ? static_cast<int>(layers.size()) : stages;
  OSLO_CHECK(count > 0 && number >= -1 && number < count, who(), to_string(path),
             layer ? ": the model has " : ": the pipeline has ", count, layer ? " layer" : " stage",
             count == 1 ? "" : "s", ", counted from 0; -1 is the last one");
  if (!layer) return number == -1 ? stages - 1 : number;
  return number == -1 ? layers.back() : layers[number];
}

std::vector<std::pair<std::string, int>> StageAssignment::stages(
    const ModelView& model, int stages, const std::vector<int>& layers) const {
  struct Found {
    By by;
    std::string path;
    int stage;
  };
  std::vector<Found> found;
  for (const Note& note : notes_) {
    for (const std::string& path : note.paths_in(model)) {
      found.push_back({note.by, path, note.stage(path, stages, layers)});
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return a.by != b.by ? a.by < b.by : a.path.size() < b.path.size();
  });
  std::vector<std::pair<std::string, int>> placed;
  for (Found& each : found) placed.emplace_back(std::move(each.path), each.stage);
  return placed;
}

std::string StageAssignment::to_string(const ModelView& model) const {
  std::string text;
  for (const Note& note : notes_) {
    const std::vector<std::string> paths = note.paths_in(model);
    const std::string what =
        note.module ? class_name(*note.module) : c10::str("tensor of shape ", note.tensor.sizes());
    OSLO_CHECK(!paths.empty(), note.who(), note.to_string("a " + what), ": the model has no such ",
               note.module ? "module" : "parameter or buffer",
               "; give it one that is registered in the model that is initialized");
    for (const std::string& path : paths) text += note.to_string(path) + "\n";
  }
  return text;
}

StageAssignment layer_indices(const ModelView& model) {
  StageAssignment said;
  for (const ModuleView& each : model.modules()) {
    const auto* const own = dynamic_cast<const LayerIdx*>(each.module.get());
    if (own != nullptr && own->layer_idx) said.set_layer_idx(each.module, *own->layer_idx);
  }
  return said;
}

}  // namespace oslo
