#include "parallelizers/modules/module_tree.h"

#include <c10/util/Type.h>

#include <typeinfo>

#include "parallelizers/modules/module_traits.h"

namespace oslo {
namespace {

/// Opens `parameters_`, which Module keeps for its subclasses.
struct Access : torch::nn::Module {
  using torch::nn::Module::parameters_;
};

}  // namespace

std::string class_name(const torch::nn::Module& module) {
  if (const auto* traits = dynamic_cast<const ModuleTraits*>(&module))
    return traits->written_class();
  std::string name = c10::demangle(typeid(module).name());
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

std::string join_path(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

torch::OrderedDict<std::string, at::Tensor>& registered_parameters(torch::nn::Module& module) {
  return module.*(&Access::parameters_);
}

}  // namespace oslo
