#include "mpu/base/told_error.h"

#include "mpu/base/text.h"

namespace oslo {

ToldError ToldError::of(const std::exception& error) {
  return {kind_of(error), message_of(error)};
}

ToldError ToldError::read(std::string_view text) {
  if (text.empty()) return {};
  const std::string message(text.substr(1));
  for (const ErrorKind kind : {ErrorKind::peer, ErrorKind::config, ErrorKind::file}) {
    if (text.front() == static_cast<char>(kind)) return {kind, message};
  }
  return {ErrorKind::other, message};
}

}  // namespace oslo
