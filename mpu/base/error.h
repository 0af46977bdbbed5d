#pragma once

#include <c10/util/StringUtil.h>

#include <stdexcept>
#include <string>

namespace oslo {

/// What every misuse and every failed rank ends in. The message names what is wrong, the value
/// seen and the fix; it carries no stack trace, because its reader is a user, not a debugger.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Throws `Error` with the concatenation of `parts`.
template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw Error(c10::str(parts...));
}

}  // namespace oslo

/// Throws `oslo::Error` with the concatenated message unless `condition` holds.
#define OSLO_CHECK(condition, ...)   \
  do {                               \
    if (!(condition)) [[unlikely]] { \
      ::oslo::fail(__VA_ARGS__);     \
    }                                \
  } while (false)
