#pragma once

#include <torch/nn/modules/container/any.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "oslo_cpp/registry/model_from_config.h"
#include "oslo_cpp/registry/module_table.h"

namespace oslo {

/// Makes classes of modules that a config names: `OSLO_REGISTER_MODULE(MyModel);` in a source file,
/// at namespace scope, beside TORCH_MODULE(MyModel), as Colossal-AI's `@MODELS.register_module`.
/// The name is what stands behind the last `::`. The class is constructed from the config's entry,
/// a JSON object with its "type" and arguments, or from nothing:
///
///     struct MyModelImpl : oslo::ModelFromConfig {
///       explicit MyModelImpl(const nlohmann::json& arguments) {
///         const int64_t width = arguments.at("width");
///         layers_cfg = {{{"type", "Linear"}, {"in_features", 3}, {"out_features", width}},
///                       {{"type", "Linear"}, {"in_features", width}, {"out_features", 2}}};
///       }
///     };
///     TORCH_MODULE(MyModel);
///     OSLO_REGISTER_MODULE(MyModel);
///
/// The table is the process's, and filled before `main`, or by a library that is loaded later. A
/// name that two classes have is refused where it is asked for. Any thread may register and look
/// up. LibTorch's own layers need no registering (torch_layers.h).
#define OSLO_REGISTER_MODULE(...) OSLO_REGISTER_MODULE_AT(__COUNTER__, __VA_ARGS__)
#define OSLO_REGISTER_MODULE_AT(number, ...) OSLO_REGISTER_MODULE_AS(number, __VA_ARGS__)
#define OSLO_REGISTER_MODULE_AS(number, ...)                           \
  [[maybe_unused]] static const bool oslo_registered_module_##number = \
      ::oslo::register_module_class<__VA_ARGS__>(#__VA_ARGS__)

namespace detail {

/// Nothing but the arguments converts to it: a constructor from numbers is none from JSON.
struct ModuleArguments {
  const nlohmann::json& entry;
  operator const nlohmann::json&() const { return entry; }  // NOLINT(google-explicit-constructor)
};

template <typename T, bool = std::is_base_of_v<torch::nn::Module, T>>
struct RegisteredImpl {
  using Type = T;
};
template <typename T>
struct RegisteredImpl<T, false> {
  using Type = typename T::ContainedType;
};

template <typename Impl>
std::shared_ptr<Impl> make_registered(const nlohmann::json& entry) {
  constexpr bool kFromJson = std::is_constructible_v<Impl, ModuleArguments>;
  static_assert(kFromJson || std::is_default_constructible_v<Impl>,
                "OSLO_REGISTER_MODULE: the class needs a constructor from const nlohmann::json&, "
                "or one without arguments");
  std::shared_ptr<Impl> made;
  if constexpr (kFromJson) {
    made = std::make_shared<Impl>(entry);
  } else {
    oslo::check_no_arguments(entry);
    made = std::make_shared<Impl>();
  }
  return made;
}

template <typename Impl>
constexpr bool has_own_forward() {
  if constexpr (!std::is_base_of_v<ModelFromConfig, Impl>) {
    return false;
  } else if constexpr (!torch::detail::has_forward<Impl>::value) {
    return true;
  } else {
    return !std::is_same_v<decltype(&Impl::forward), decltype(&ModelFromConfig::forward)>;
  }
}

}  // namespace detail

template <typename T>
bool register_module_class(const char* name) {
  using Impl = typename detail::RegisteredImpl<T>::Type;
  RegisteredModule registered;
  registered.name = name;
  registered.type = &typeid(Impl);
  registered.make = [](const nlohmann::json& entry) {
    const auto made = detail::make_registered<Impl>(entry);
    if constexpr (std::is_base_of_v<ModelFromConfig, Impl>) made->build_from_cfg();
    return made;
  };
  if constexpr (torch::detail::has_forward<Impl>::value) {
    registered.make_layer = [](const nlohmann::json& entry) {
      const auto made = detail::make_registered<Impl>(entry);
      if constexpr (std::is_base_of_v<ModelFromConfig, Impl>) made->build_from_cfg();
      return torch::nn::AnyModule(made);
    };
  }
  registered.own_forward = detail::has_own_forward<Impl>();
  return register_module(std::move(registered));
}

}  // namespace oslo
