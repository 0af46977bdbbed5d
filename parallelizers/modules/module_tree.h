#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

namespace oslo {

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
