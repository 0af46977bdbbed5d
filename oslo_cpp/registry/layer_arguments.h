#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace oslo {

/// The arguments of a layer's entry, `{"type": "Linear", "in_features": 3, ...}`, as its maker asks
/// for them. Each getter throws `ConfigError` for a value of another kind, and without `fallback`
/// for one that is missing.
class LayerArguments {
 public:
  explicit LayerArguments(const nlohmann::json& entry) : entry_(entry) {}

  int64_t integer(const char* name, std::optional<int64_t> fallback = std::nullopt);
  double number(const char* name, double fallback);
  bool flag(const char* name, bool fallback);
  std::string word(const char* name, const char* fallback);
  /// A number stands for `count` equal ones; a list has so many, or any number where `count` is 0.
  std::vector<int64_t> integers(const char* name, size_t count,
                                std::optional<std::vector<int64_t>> fallback = std::nullopt);

  /// Throws for an argument that nobody asked for, with the nearest one.
  void finish() const;

 private:
  const nlohmann::json* find(const char* name);
  [[noreturn]] void fail_for(const char* name, const char* expected) const;
  [[noreturn]] void missing(const char* name) const;

  const nlohmann::json& entry_;
  std::vector<std::string> asked_;
};

}  // namespace oslo
