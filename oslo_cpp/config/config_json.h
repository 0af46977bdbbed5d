#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "checkpoint/formats/json/bounded_json.h"

namespace oslo {

/// What a config may have; a plan of ten thousand patterns fits.
inline constexpr JsonLimits kConfigLimits = {.bytes = 1 << 20, .values = 1 << 17, .depth = 16};

/// What a value is, for the "seen" part of a message: `the string "2"`, `an array of 3 elements`.
std::string describe(const nlohmann::ordered_json& value);

/// `'text'`, cut if it is very long, and made printable.
std::string in_quotes(std::string_view text);

}  // namespace oslo
