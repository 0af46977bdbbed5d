#include "oslo_cpp/exported/module/module_builder.h"

#include <torch/nn/module.h>

#include <algorithm>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"
#include "oslo_cpp/exported/module/python_module.h"
#include "parallelizers/modules/module_tree.h"
#include "parallelizers/modules/parameters_in_use.h"

namespace oslo::exported {
namespace {

// Whoever walks a tree of modules recurses.
constexpr auto kDeepest = 100;

}  // namespace

std::pair<std::string, std::string> split_name(const std::string& name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos) return {"", name};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

std::string short_class_name(const std::string& class_name) {
  const std::string name = split_name(class_name).second;
  return name.empty() ? "Module" : name;
}

ModuleBuilder::ModuleBuilder(torch::nn::Module& root, std::string file, const ModuleUses& uses,
                             std::map<std::string, LayerSizes> sizes)
    : root_(root), file_(std::move(file)), uses_(uses), sizes_(std::move(sizes)) {}

torch::nn::Module& ModuleBuilder::add_module(const std::string& path) {
  if (path.empty()) return root_;
  const auto known = modules_.find(path);
  if (known != modules_.end()) return *known->second;
  OSLO_CHECK(std::count(path.begin(), path.end(), '.') < kDeepest, file_, ": the module '",
             printable(path), "' is nested deeper than the ", kDeepest, " levels that are read");
  const auto [above, name] = split_name(path);
  torch::nn::Module& parent = add_module(above);
  OSLO_CHECK(!name.empty(), file_, ": a module is named '", printable(path),
             "', with nothing between two dots");
  static const ModuleUse kUnseen;
  static const LayerSizes kNone;
  const auto use = uses_.find(path);
  const auto sizes = sizes_.find(path);
  const ModuleUse& shown = use == uses_.end() ? kUnseen : use->second;
  auto module = make_layer(shown, sizes == sizes_.end() ? kNone : sizes->second);
  if (!module) module = std::make_shared<PythonModule>(short_class_name(shown.class_name));
  parent.register_module(name, module);
  modules_.emplace(path, module);
  return *module;
}

std::pair<torch::nn::Module*, std::string> ModuleBuilder::place_of(const std::string& name) {
  OSLO_CHECK(names_.insert(name).second, file_, ": two tensors are named '", printable(name), "'");
  const auto [path, leaf] = split_name(name);
  return {&add_module(path), leaf};
}

ParameterSlot ModuleBuilder::add_parameter(const std::string& name, const at::Tensor& tensor) {
  const auto [place, leaf] = place_of(name);
  torch::nn::Module& module = *place;
  at::Tensor* const registered = registered_parameters(module).find(leaf);
  at::Tensor* member = registered != nullptr ? parameter_member(module, leaf) : nullptr;
  // Registered once, as Python's parameters() lists it: an optimizer steps what it finds twice
  // twice.
  const bool first = registered_.insert(tensor.unsafeGetTensorImpl()).second;
  if (member != nullptr) {
    *registered = first ? tensor : at::Tensor();
    *member = tensor;
  } else if (first) {
    module.register_parameter(leaf, tensor, tensor.requires_grad());
  } else if (auto* python = dynamic_cast<PythonModule*>(&module)) {
    member = python->tie(leaf, tensor);
  }
  return {tensor, member};
}

at::Tensor ModuleBuilder::add_buffer(const std::string& name, const at::Tensor& tensor,
                                     bool saved) {
  const auto [place, leaf] = place_of(name);
  torch::nn::Module& module = *place;
  const auto buffers = module.named_buffers(/*recurse=*/false);
  if (const at::Tensor* layers = buffers.find(leaf)) {
    layers->set_data(tensor);  // the layer's member is this one, too
    return *layers;
  }
  module.register_buffer(leaf, tensor);
  if (auto* python = dynamic_cast<PythonModule*>(&module); python != nullptr && !saved) {
    python->leave_out_of_state(leaf);
  }
  return tensor;
}

}  // namespace oslo::exported
