#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "mpu/base/error.h"

namespace oslo {

/// An error on its way to other ranks, so that all of them throw one of its kind.
struct ToldError {
  ErrorKind kind = ErrorKind::other;
  std::string message;

  /// Of an exception, without the stack trace of LibTorch's.
  static ToldError of(const std::exception& error);
  /// Of what `text` gave on another rank. What this library did not write is of no kind.
  static ToldError read(std::string_view text);

  std::string text() const { return static_cast<char>(kind) + message; }
};

}  // namespace oslo
