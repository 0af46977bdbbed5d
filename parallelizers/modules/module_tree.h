#pragma once

#include <torch/nn/module.h>

#include <string>

namespace oslo {

/// The class of a module as users write it: "torch::nn::Linear", "Mlp". `Module::name()` says the
/// same with the suffix Impl, but remembers its answer, which copies of the module then repeat.
std::string class_name(const torch::nn::Module& module);

/// `prefix` and `name` joined by a dot, or `name` alone.
std::string join_path(const std::string& prefix, const std::string& name);

/// The module's own registered parameters themselves (`named_parameters` gives copies of the
/// handles, which cannot be exchanged).
torch::OrderedDict<std::string, at::Tensor>& registered_parameters(torch::nn::Module& module);

}  // namespace oslo
