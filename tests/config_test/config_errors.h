#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "oslo_cpp/config.h"
#include "tests/support/error_of.h"

namespace oslo::config_test {

using test::error_of;

inline std::string parse_error(const std::string& text) {
  return error_of([&] { Config::parse(text); });
}

inline std::string resolve_error(const std::string& text, int world_size) {
  Config config = Config::parse(text);
  return error_of([&] { config.resolve(world_size); });
}

inline void expect_contains(const std::string& message, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(message.find(part), std::string::npos)
        << "no <" << part << "> in <" << message << ">";
  }
}

}  // namespace oslo::config_test
