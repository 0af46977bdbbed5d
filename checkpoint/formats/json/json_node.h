#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/storage/outside_text.h"
#include "mpu/base/error.h"

namespace oslo {

/// A value of a JSON document that nobody vouches for, and the words that lead to it. Every reader
/// throws `Error` with those words where the value is missing or of another type. Refers to the
/// document, which must outlive it.
class JsonNode {
 public:
  using Json = nlohmann::json;

  JsonNode(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  bool has(const std::string& key) const { return object().count(key) > 0; }
  JsonNode operator[](const std::string& key) const {
    const auto found = object().find(key);
    OSLO_CHECK_AS(file, found != json_.end(), where_, " has no entry '", key, "'");
    return {*found, c10::str(where_, ", ", key)};
  }
  const Json& object() const { return typed(json_.is_object(), "an object"); }
  std::string text() const {
    const auto& text = typed(json_.is_string(), "a text").get_ref<const std::string&>();
    OSLO_CHECK_AS(file, text.find('\0') == std::string::npos, where_, " holds a NUL byte");
    return text;
  }
  int64_t number() const {
    typed(json_.is_number_unsigned() && json_.get<uint64_t>() <= uint64_t{INT64_MAX},
          "a whole number from 0");
    return json_.get<int64_t>();
  }
  bool truth() const { return typed(json_.is_boolean(), "true or false").get<bool>(); }
  double real() const { return typed(json_.is_number(), "a number").get<double>(); }
  /// A count that the rest of the library keeps in an int.
  int count() const {
    const int64_t value = number();
    OSLO_CHECK_AS(file, value <= INT32_MAX, where_, " is ", value,
                  ", more than any count of ranks");
    return static_cast<int>(value);
  }
  std::vector<JsonNode> list() const {
    std::vector<JsonNode> nodes;
    for (const Json& item : typed(json_.is_array(), "a list")) {
      nodes.emplace_back(item, c10::str(where_, "[", nodes.size(), "]"));
    }
    return nodes;
  }
  std::vector<int64_t> numbers() const {
    std::vector<int64_t> values;
    for (const JsonNode& item : list()) values.push_back(item.number());
    return values;
  }
  std::vector<std::string> texts() const {
    std::vector<std::string> values;
    for (const JsonNode& item : list()) values.push_back(item.text());
    return values;
  }
  std::vector<std::pair<std::string, JsonNode>> items() const {
    std::vector<std::pair<std::string, JsonNode>> nodes;
    for (const auto& [key, value] : object().items()) {
      nodes.emplace_back(key, JsonNode(value, c10::str(where_, ", '", printable(key), "'")));
    }
    return nodes;
  }
  const std::string& where() const { return where_; }

 private:
  const Json& typed(bool fits, const char* expected) const {
    OSLO_CHECK_AS(file, fits, where_, " should be ", expected, ", not ",
                  printable(json_.dump(), 40));
    return json_;
  }

  const Json& json_;
  std::string where_;
};

}  // namespace oslo
