#include "parallelizers/stages/model_layers.h"

#include <algorithm>

namespace oslo {
namespace {

/// A module and those directly beneath it.
struct Branch {
  const ModuleView* module = nullptr;
  std::vector<Branch> children;
  bool has_parameters = false;
};

std::string parent_path(const std::string& path) {
  const size_t dot = path.rfind('.');
  return dot == std::string::npos ? std::string() : path.substr(0, dot);
}

bool holds_parameters(const ModelView& model, const std::string& path) {
  const auto& parameters = model.parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [&](const ParameterView& parameter) { return lies_in(parameter.path, path); });
}

Branch branch_of(const ModelView& model, const ModuleView& module) {
  Branch branch{&module, {}, holds_parameters(model, module.path)};
  for (const ModuleView& other : model.modules()) {
    if (other.path.empty() || other.path == module.path) continue;
    if (parent_path(other.path) != module.path) continue;
    branch.children.push_back(branch_of(model, other));
  }
  return branch;
}

/// "layer_" of "layer_3".
std::string before_number(const std::string& name) {
  return name.substr(0, name.find_last_not_of("0123456789") + 1);
}

/// ModuleList, Sequential, and whatever else numbers its children: "0", "layer_0".
bool is_list(const Branch& branch) {
  if (branch.children.empty()) return false;
  const std::string first = before_number(branch.children.front().module->name);
  return std::all_of(branch.children.begin(), branch.children.end(), [&](const Branch& child) {
    const std::string& name = child.module->name;
    return before_number(name) == first && name != first;
  });
}

/// At least two of one class that have modules inside, and nothing else with parameters.
bool is_list_of_blocks(const Branch& branch) {
  if (!is_list(branch)) return false;
  const Branch* first = nullptr;
  size_t blocks = 0;
  for (const Branch& child : branch.children) {
    if (!child.has_parameters) continue;
    if (child.children.empty()) return false;
    if (first == nullptr) first = &child;
    if (child.module->class_name != first->module->class_name) return false;
    ++blocks;
  }
  return blocks > 1;
}

void add_blocks(const Branch& branch, std::vector<std::string>& layers) {
  const bool blocks = is_list_of_blocks(branch);
  for (const Branch& child : branch.children) {
    if (!blocks) {
      add_blocks(child, layers);
    } else if (child.has_parameters) {
      layers.push_back(child.module->path);
    }
  }
}

void add_units(const Branch& branch, std::vector<std::string>& layers) {
  for (const Branch& child : branch.children) {
    if (!child.has_parameters) continue;
    if (is_list(child)) {
      add_units(child, layers);
    } else {
      layers.push_back(child.module->path);
    }
  }
}

}  // namespace

bool lies_in(const std::string& path, const std::string& module) {
  if (module.empty() || path == module) return true;
  return path.size() > module.size() && path.starts_with(module) && path[module.size()] == '.';
}

std::vector<std::string> pipeline_layers(const ModelView& model, std::optional<int> expected) {
  if (model.modules().empty()) return {};
  Branch root = branch_of(model, model.modules().front());
  std::vector<std::string> blocks, units;
  add_blocks(root, blocks);
  // A model around a model: what the inner one is made of.
  const Branch* inner = &root;
  while (inner->children.size() == 1) inner = &inner->children.front();
  add_units(inner->children.empty() ? root : *inner, units);
  if (expected && static_cast<int>(blocks.size()) != *expected &&
      static_cast<int>(units.size()) == *expected) {
    return units;
  }
  return blocks.empty() ? units : blocks;
}

}  // namespace oslo
