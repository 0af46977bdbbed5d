#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace oslo {

/// One registration of a module in a tree.
struct ModuleEntry {
  std::string path;  ///< "h.0.attn"; empty for the root
  std::string name;  ///< "attn": its name in the parent
  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<torch::nn::Module> parent;  ///< null for the root
};

/// Every registration, parents before children, in registration order. A module that is registered
/// twice appears twice, under both paths.
std::vector<ModuleEntry> module_entries(const std::shared_ptr<torch::nn::Module>& root);

/// Registers `replacement` in place of the parent's child `name`, so that printing, named_modules,
/// parameters, saving and loading see it. What *calls* the child is not changed: a typed member
/// (`torch::nn::Linear fc`) and the containers' own lists (Sequential, ModuleList and ModuleDict
/// keep a second list beside the registered children) still hold the old object. That is fine as
/// long as both share their parameters, since the parameters decide what happens.
/// Throws when the parent has no such child.
void replace_child(torch::nn::Module& parent, const std::string& name,
                   std::shared_ptr<torch::nn::Module> replacement);

/// The class of a module as users write it: "torch::nn::Linear", "Mlp". `Module::name()` says the
/// same with the suffix Impl, but remembers its answer, which copies of the module then repeat.
std::string class_name(const torch::nn::Module& module);

/// `prefix` and `name` joined by a dot, or `name` alone.
std::string join_path(const std::string& prefix, const std::string& name);

/// The module's own registered parameters themselves (`named_parameters` gives copies of the
/// handles, which cannot be exchanged).
torch::OrderedDict<std::string, at::Tensor>& registered_parameters(torch::nn::Module& module);

}  // namespace oslo
