#pragma once

#include <c10/util/StringUtil.h>

#include <exception>
#include <stdexcept>
#include <string>

namespace oslo {

/// What every misuse and every failed rank ends in. The message names what is wrong, the value
/// seen and the fix; it carries no stack trace, because its reader is a user, not a debugger. For
/// programs that decide what to do next there are the kinds below; docs/errors.md says which of
/// them a launcher may start again.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Another rank has ended, is late, or did something else than this one: nothing is wrong with what
/// the program asked for, and the job may be started again.
class PeerError : public Error {
 public:
  using Error::Error;
};

/// What the job was started with: a key of the config, a size, a pattern of the plan, an
/// environment variable.
class ConfigError : public Error {
 public:
  using Error::Error;
};

/// A file or folder that is not there, cannot be read or written, or is damaged.
class FileError : public Error {
 public:
  using Error::Error;
};

/// By these letters ranks tell each other of what kind an error is.
enum class ErrorKind : char { other = 'o', peer = 'p', config = 'c', file = 'f' };

inline ErrorKind kind_of(const std::exception& error) {
  if (dynamic_cast<const PeerError*>(&error) != nullptr) return ErrorKind::peer;
  if (dynamic_cast<const ConfigError*>(&error) != nullptr) return ErrorKind::config;
  if (dynamic_cast<const FileError*>(&error) != nullptr) return ErrorKind::file;
  return ErrorKind::other;
}

/// Throws an error of that kind with the concatenation of `parts`.
template <typename... Parts>
[[noreturn]] void fail_as(ErrorKind kind, const Parts&... parts) {
  const std::string message = c10::str(parts...);
  switch (kind) {
    case ErrorKind::peer:
      throw PeerError(message);
    case ErrorKind::config:
      throw ConfigError(message);
    case ErrorKind::file:
      throw FileError(message);
    case ErrorKind::other:
      break;
  }
  throw Error(message);
}

/// Throws `Error` with the concatenation of `parts`.
template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  fail_as(ErrorKind::other, parts...);
}

}  // namespace oslo

/// Throws `oslo::Error` with the concatenated message unless `condition` holds.
#define OSLO_CHECK(condition, ...) OSLO_CHECK_AS(other, condition, __VA_ARGS__)

/// The same of a kind: OSLO_CHECK_AS(file, found, "there is no file ", name).
#define OSLO_CHECK_AS(kind, condition, ...)                  \
  do {                                                       \
    if (!(condition)) [[unlikely]] {                         \
      ::oslo::fail_as(::oslo::ErrorKind::kind, __VA_ARGS__); \
    }                                                        \
  } while (false)
