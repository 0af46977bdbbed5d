#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "mpu/base/error.h"

namespace oslo::test {

/// The message of the `Error` that `call` throws; a failed expectation where it throws none.
template <typename Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "no oslo::Error was thrown";
  return {};
}

/// Each of `parts` stands in `message`.
inline void expect_contains(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos)
        << "no <" << part << "> in <" << message << ">";
  }
}

}  // namespace oslo::test
