#include "oslo_cpp/registry/layer_arguments.h"

#include <algorithm>

#include "mpu/base/error.h"
#include "mpu/base/words/nearest_name.h"

namespace oslo {

const nlohmann::json* LayerArguments::find(const char* name) {
  asked_.emplace_back(name);
  const auto at = entry_.find(name);
  return at == entry_.end() ? nullptr : &*at;
}

void LayerArguments::fail_for(const char* name, const char* expected) const {
  fail_as(ErrorKind::config, "layer ", entry_.dump(), ": '", name, "' is ", entry_.at(name).dump(),
          "; set it to ", expected);
}

void LayerArguments::missing(const char* name) const {
  fail_as(ErrorKind::config, "layer ", entry_.dump(), ": '", name, "' is missing; add it");
}

int64_t LayerArguments::integer(const char* name, std::optional<int64_t> fallback) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return fallback ? *fallback : (missing(name), 0);
  if (!value->is_number_integer()) fail_for(name, "an integer");
  return value->get<int64_t>();
}

double LayerArguments::number(const char* name, double fallback) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_number()) fail_for(name, "a number");
  return value->get<double>();
}

bool LayerArguments::flag(const char* name, bool fallback) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) fail_for(name, "true or false");
  return value->get<bool>();
}

std::string LayerArguments::word(const char* name, const char* fallback) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) return fallback;
  if (!value->is_string()) fail_for(name, "a word");
  return value->get<std::string>();
}

std::vector<int64_t> LayerArguments::integers(const char* name, size_t count,
                                              std::optional<std::vector<int64_t>> fallback) {
  const nlohmann::json* value = find(name);
  if (value == nullptr) {
    if (!fallback) missing(name);
    return *fallback;
  }
  if (value->is_number_integer()) {
    return std::vector<int64_t>(std::max<size_t>(count, 1), value->get<int64_t>());
  }
  const bool fits = value->is_array() && !value->empty() &&
                    (count == 0 || value->size() == count) &&
                    std::all_of(value->begin(), value->end(),
                                [](const auto& each) { return each.is_number_integer(); });
  if (!fits) fail_for(name, c10::str("an integer, or a list of ", count, " integers").c_str());
  return value->get<std::vector<int64_t>>();
}

void LayerArguments::finish() const {
  for (const auto& item : entry_.items()) {
    if (item.key() == "type") continue;
    if (std::find(asked_.begin(), asked_.end(), item.key()) != asked_.end()) continue;
    const std::string* const meant = name_meant(asked_, item.key());
    fail_as(ErrorKind::config, "layer ", entry_.dump(), ": it has no argument '", item.key(), "'; ",
            asked_.empty()     ? "leave it out"
            : meant != nullptr ? "the nearest one is '" + *meant + "'"
                               : "its arguments are " + c10::Join(", ", asked_));
  }
}

}  // namespace oslo
