#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace oslo {

/// Reads JSON text with comments, keys in the order written. Throws `nlohmann::json::parse_error`
/// for bad JSON and `Error` for a key that appears twice in one object.
nlohmann::ordered_json read_json(const std::string& text);

/// A parse error without the JSON library's own code: "line 2, column 7: ...".
std::string describe(const nlohmann::json::parse_error& error);

/// What a value is, for the "seen" part of a message: `the string "2"`, `an array of 3 elements`.
std::string describe(const nlohmann::ordered_json& value);

/// `'text'`, cut if it is very long.
std::string in_quotes(std::string_view text);

}  // namespace oslo
