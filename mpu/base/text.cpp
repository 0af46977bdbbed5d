#include "mpu/base/text.h"

#include <c10/util/Exception.h>

namespace oslo {
namespace {

constexpr std::string_view kNothing = "(nothing)";

/// Takes the first line off `rest`.
std::string_view take_line(std::string_view& rest) {
  if (rest.empty()) return kNothing;
  const size_t end = rest.find('\n');
  const std::string_view line = rest.substr(0, end);
  rest.remove_prefix(end == std::string_view::npos ? rest.size() : end + 1);
  return line;
}

}  // namespace

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

std::string message_of(const std::exception& error) {
  const auto* librarys = dynamic_cast<const c10::Error*>(&error);
  return librarys != nullptr ? librarys->what_without_backtrace() : error.what();
}

std::pair<std::string, std::string> first_difference(std::string_view a, std::string_view b) {
  while (!a.empty() || !b.empty()) {
    const std::string_view left = take_line(a), right = take_line(b);
    if (left != right) return {std::string(left), std::string(right)};
  }
  return {};
}

}  // namespace oslo
