#pragma once

#include <gtest/gtest.h>

#include <string>

#include "mpu/error.h"

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

}  // namespace oslo::test
