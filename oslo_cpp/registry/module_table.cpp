#include "oslo_cpp/registry/module_table.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/base/words/nearest_name.h"
#include "oslo_cpp/registry/torch_layers.h"

namespace oslo {
namespace {

/// Of the process, and filled before `main`: the one exception, beside LibTorch's own dispatcher,
/// as what classes a program has does not depend on who asks.
struct Table {
  std::mutex mutex;
  std::multimap<std::string, RegisteredModule> classes;
};

Table& table() {
  static Table of_process;
  return of_process;
}

std::string last_part(const std::string& name) {
  const size_t colons = name.rfind("::");
  return colons == std::string::npos ? name : name.substr(colons + 2);
}

const std::string& type_of(const nlohmann::json& entry) {
  OSLO_CHECK_AS(config, entry.is_object() && entry.contains("type") && entry["type"].is_string(),
                "a module's entry is ", entry.dump(),
                "; make it an object with the name of a class, {\"type\": \"Linear\", ...}");
  return entry["type"].get_ref<const std::string&>();
}

[[noreturn]] void unknown(const std::string& type) {
  std::vector<std::string> names = registered_module_names();
  for (const std::string& layer : torch_layer_names()) names.push_back(layer);
  const std::string* const meant = name_meant(names, type);
  fail_as(ErrorKind::config, "no class is called '", type, "'",
          meant == nullptr ? "" : "; the nearest name is '" + *meant + "'",
          "; a class of your own needs OSLO_REGISTER_MODULE(", type,
          ") in a source file of the program");
}

}  // namespace

bool register_module(RegisteredModule registered) {
  registered.name = last_part(registered.name);
  const std::lock_guard<std::mutex> lock(table().mutex);
  auto [first, last] = table().classes.equal_range(registered.name);
  const bool known = std::any_of(
      first, last, [&](const auto& item) { return *item.second.type == *registered.type; });
  if (!known) table().classes.emplace(registered.name, std::move(registered));
  return true;
}

const RegisteredModule* find_module(const std::string& name) {
  const std::lock_guard<std::mutex> lock(table().mutex);
  const auto [first, last] = table().classes.equal_range(name);
  if (first == last) return nullptr;
  OSLO_CHECK(std::next(first) == last, "two classes are registered as '", name, "', ",
             c10::demangle(first->second.type->name()), " and ",
             c10::demangle(std::next(first)->second.type->name()), "; rename one of them");
  return &first->second;
}

std::vector<std::string> registered_module_names() {
  const std::lock_guard<std::mutex> lock(table().mutex);
  std::vector<std::string> names;
  for (const auto& item : table().classes) {
    if (names.empty() || names.back() != item.first) names.push_back(item.first);
  }
  return names;
}

std::shared_ptr<torch::nn::Module> build_model(const nlohmann::json& entry) {
  const std::string& type = type_of(entry);
  if (const RegisteredModule* registered = find_module(type)) return registered->make(entry);
  return build_layer(entry).ptr();
}

torch::nn::AnyModule build_layer(const nlohmann::json& entry) {
  const std::string& type = type_of(entry);
  if (const RegisteredModule* registered = find_module(type)) {
    OSLO_CHECK_AS(config, registered->make_layer != nullptr, "'", type,
                  "' has no forward that a list of layers can call: give it one forward, that is "
                  "neither a template nor overloaded");
    return registered->make_layer(entry);
  }
  torch::nn::AnyModule layer = torch_layer(entry);
  if (layer.is_empty()) unknown(type);
  return layer;
}

void check_no_arguments(const nlohmann::json& entry) {
  for (const auto& item : entry.items()) {
    OSLO_CHECK_AS(config, item.key() == "type", "type ", entry["type"].dump(), ": the argument '",
                  item.key(),
                  "' goes nowhere, as its class has no constructor from const nlohmann::json&; "
                  "write one, or leave the argument out");
  }
}

}  // namespace oslo
