#include "mpu/base/time_limit.h"

#include <charconv>
#include <cstdlib>

#include "mpu/base/error.h"

namespace oslo {
namespace {

[[noreturn]] void refuse(std::string_view source, std::string_view seen) {
  fail(source, " is ", seen, "; give whole seconds from 1 to ", kMostTimeoutSeconds,
       " (a week), e.g. 600");
}

}  // namespace

std::chrono::milliseconds parse_timeout(std::string_view source, std::string_view text) {
  int64_t seconds = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  const bool number = error == std::errc() && stop == text.data() + text.size();
  if (!number || seconds < 1 || seconds > kMostTimeoutSeconds)
    refuse(source, c10::str("'", text, "'"));
  return std::chrono::seconds(seconds);
}

std::chrono::milliseconds check_timeout(std::string_view source,
                                        std::chrono::milliseconds timeout) {
  // Tests wait for less than a second.
  if (timeout.count() < 1 || timeout > std::chrono::seconds(kMostTimeoutSeconds)) {
    refuse(source, to_text(timeout));
  }
  return timeout;
}

std::chrono::milliseconds timeout_from_environment() {
  const char* const text = std::getenv("OSLO_TIMEOUT");
  if (text == nullptr || *text == '\0') return kDefaultTimeout;
  return parse_timeout("OSLO_TIMEOUT", text);
}

std::string to_text(std::chrono::milliseconds time) {
  if (time.count() % 1000 != 0) return c10::str(time.count(), " ms");
  return c10::str(time.count() / 1000, " s");
}

}  // namespace oslo
