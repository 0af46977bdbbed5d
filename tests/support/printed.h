#pragma once

#include <sstream>
#include <string>

namespace oslo::test {

/// What a program sees that prints it.
template <typename Printable>
std::string printed(const Printable& what) {
  std::ostringstream text;
  text << what;
  return text.str();
}

}  // namespace oslo::test
