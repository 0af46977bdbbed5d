#pragma once

#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "checkpoint/formats/json/bounded_json.h"
#include "mpu/base/error.h"

namespace oslo {

/// What a config may have; a plan of ten thousand patterns fits.
inline constexpr JsonLimits kConfigLimits = {.bytes = 1 << 20, .values = 1 << 17, .depth = 16};

/// What a value is, for the "seen" part of a message: `the string "2"`, `an array of 3 elements`.
std::string describe(const nlohmann::ordered_json& value);

/// `'text'`, cut if it is very long, and made printable.
std::string in_quotes(std::string_view text);

/// The value below `object`; null where it is absent, or `object` is none.
const nlohmann::ordered_json& json_member(const nlohmann::ordered_json& object, const char* key);

/// Runs `read`; whatever it throws is a `ConfigError` that begins with `source`.
template <typename Read>
auto with_source(const std::string& source, const Read& read) {
  try {
    return read();
  } catch (const std::exception& error) {
    fail_as(ErrorKind::config, source, ": ", error.what());
  }
}

}  // namespace oslo
