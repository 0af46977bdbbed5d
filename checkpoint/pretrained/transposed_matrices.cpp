#include "checkpoint/pretrained/transposed_matrices.h"

#include <torch/nn/module.h>

#include <optional>

#include "checkpoint/index/saved_optimizer.h"
#include "parallelizers/modules/module_traits.h"

namespace oslo {
namespace {

using Shapes = std::map<std::string, std::vector<int64_t>>;

/// Whether a matrix is [out, in], by the size of its bias; nothing where that does not say.
std::optional<bool> tells(const std::string& name, const std::vector<int64_t>& shape,
                          const Shapes& shapes) {
  const auto bias = shapes.find(name.substr(0, name.rfind('.') + 1) + "bias");
  if (shape[0] == shape[1] || bias == shapes.end() || bias->second.size() != 1) return std::nullopt;
  if (bias->second[0] == shape[0]) return true;
  if (bias->second[0] == shape[1]) return false;
  return std::nullopt;
}

/// The names of matrices that a Python module holds which LibTorch has no layer for.
std::set<std::string> matrices_of_python(const ModelView& model) {
  std::set<std::string> names;
  for (const ParameterView& parameter : model.parameters()) {
    const auto* traits =
        dynamic_cast<const ModuleTraits*>(model.modules()[parameter.module].module.get());
    if (traits != nullptr && traits->written_class() != "Linear") names.insert(parameter.path);
  }
  return names;
}

}  // namespace

std::set<std::string> transposed_matrices(const PretrainedFamily& family, const Shapes& shapes,
                                          const std::set<std::string>& lies_as_in_python) {
  std::map<std::string, std::optional<bool>> matrices;  // whether each is [out, in]
  std::set<bool> seen;
  for (const auto& [name, shape] : shapes) {
    if (shape.size() != 2 || !family.lies_transposed(name)) continue;
    const std::optional<bool> told = tells(name, shape, shapes);
    matrices[name] = told;
    if (told) seen.insert(*told);
  }
  std::set<std::string> transposed;
  for (const auto& [name, told] : matrices) {
    const bool otherwise = seen.size() == 1 ? *seen.begin() : lies_as_in_python.count(name) == 0;
    if (told.value_or(otherwise)) transposed.insert(name);
  }
  return transposed;
}

std::map<std::string, std::vector<int64_t>> shapes_of(const CheckpointIndex& index) {
  Shapes shapes;
  for (const auto& [name, tensor] : index.tensors) {
    if (!is_optimizer_key(name)) shapes[name] = tensor.shape;
  }
  return shapes;
}

std::set<std::string> transposed_matrices(const PretrainedFamily& family, const ModelView& model,
                                          const ModelState& state) {
  if (family.transposed.empty()) return {};
  Shapes shapes;
  for (const auto& [name, number] : state.names) shapes[name] = state.tensors[number].shape;
  return transposed_matrices(family, shapes, matrices_of_python(model));
}

}  // namespace oslo
