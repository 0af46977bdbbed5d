#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "oslo_cpp/config/config.h"
#include "tests/support/error_of.h"

namespace oslo::config_test {

using test::error_of;
using test::expect_contains;

inline std::string parse_error(const std::string& text) {
  return error_of([&] { Config::parse(text); });
}

inline std::string resolve_error(const std::string& text, int world_size) {
  Config config = Config::parse(text);
  return error_of([&] { config.resolve(world_size); });
}

}  // namespace oslo::config_test
