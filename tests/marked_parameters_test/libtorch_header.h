#pragma once

#include <fstream>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "mpu/base/error.h"

namespace oslo::test {

/// What the first group of `pattern` finds in a header below `torch/`, of LibTorch's C++ API: so
/// that a test of a kind misses none.
inline std::set<std::string> found_in_header(const std::string& header,
                                             const std::string& pattern) {
  std::ifstream file(std::string(LIBTORCH_API) + "/torch/" + header);
  OSLO_CHECK(file, "no ", header, " in " LIBTORCH_API);
  std::stringstream text;
  text << file.rdbuf();
  const std::string all = text.str();
  const std::regex searched(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator next(all.begin(), all.end(), searched), end; next != end; ++next) {
    found.insert((*next)[1]);
  }
  return found;
}

}  // namespace oslo::test
