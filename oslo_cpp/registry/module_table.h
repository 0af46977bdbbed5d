#pragma once

#include <torch/nn/modules/container/any.h>

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <typeinfo>
#include <vector>

namespace oslo {

/// What the table has of a class.
struct RegisteredModule {
  std::string name;
  const std::type_info* type;
  /// From the config's entry.
  std::function<std::shared_ptr<torch::nn::Module>(const nlohmann::json& entry)> make;
  /// The same as what a torch::nn::Sequential takes; empty for a class without one `forward`.
  std::function<torch::nn::AnyModule(const nlohmann::json& entry)> make_layer;
  /// Of a ModelFromConfig: whether it has written a forward itself.
  bool own_forward = false;
};

/// Always true. What the macro calls.
bool register_module(RegisteredModule registered);
/// Null where no class is called so. Throws where two are.
const RegisteredModule* find_module(const std::string& name);
/// Sorted.
std::vector<std::string> registered_module_names();

/// The module that an entry names, `{"type": "MyModel", "width": 4}`: a registered class, or one of
/// LibTorch's layers. A ModelFromConfig has built its layers. Throws for an unknown type, with the
/// nearest name, and for arguments that a layer lacks or does not know.
std::shared_ptr<torch::nn::Module> build_model(const nlohmann::json& entry);
/// The same for a torch::nn::Sequential. Throws, too, for a class without one plain `forward`.
torch::nn::AnyModule build_layer(const nlohmann::json& entry);

/// Throws where the entry of a class that is constructed from nothing has more than its type.
void check_no_arguments(const nlohmann::json& entry);

}  // namespace oslo
