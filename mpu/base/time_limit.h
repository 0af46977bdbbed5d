#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace oslo {

/// How long ranks wait for each other, unless they are told otherwise.
inline constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::minutes(10);

/// A week: more than anybody waits for.
inline constexpr int64_t kMostTimeoutSeconds = 7 * 24 * 3600;

/// How to change it; for errors.
inline constexpr const char* kTimeLimitHint =
    "\"timeout\" in the config, OSLO_TIMEOUT or World::set_timeout change the time limit";

/// `text` as a whole number of seconds from 1 to a week. Throws `Error` for anything else; `source`
/// names where it stands ("OSLO_TIMEOUT").
std::chrono::milliseconds parse_timeout(std::string_view source, std::string_view text);

/// What `parse_timeout` allows, for a number. Throws as it does.
std::chrono::milliseconds check_timeout(std::string_view source, std::chrono::milliseconds timeout);

/// OSLO_TIMEOUT, or the default where it is not set. An empty one counts as not set.
std::chrono::milliseconds timeout_from_environment();

/// "90 s", "250 ms".
std::string to_text(std::chrono::milliseconds time);

}  // namespace oslo
