#include "mpu/base/time_limit.h"

#include <charconv>
#include <optional>

#include "mpu/base/environment.h"
#include "mpu/base/error.h"

namespace oslo {
namespace {

[[noreturn]] void refuse(std::string_view source, std::string_view seen) {
  fail_as(ErrorKind::config, source, " is ", seen, "; give whole seconds from 1 to ",
          kMostTimeoutSeconds, " (a week), e.g. 600");
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
  const std::optional<std::string> text = read_variable(Variable::timeout);
  return text ? parse_timeout(row_of(Variable::timeout).name, *text) : kDefaultTimeout;
}

std::string to_text(std::chrono::milliseconds time) {
  if (time.count() % 1000 != 0) return c10::str(time.count(), " ms");
  return c10::str(time.count() / 1000, " s");
}

}  // namespace oslo
