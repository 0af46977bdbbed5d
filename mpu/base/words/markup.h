#pragma once

#include <string>
#include <string_view>

namespace oslo {

/// The text as it may stand in HTML and SVG, between tags and in an attribute. In the header, as
/// the `oslo` command draws schedules without the library.
inline std::string escaped_markup(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    if (c == '&') {
      safe += "&amp;";
    } else if (c == '<') {
      safe += "&lt;";
    } else if (c == '>') {
      safe += "&gt;";
    } else if (c == '"') {
      safe += "&quot;";
    } else {
      safe += c;
    }
  }
  return safe;
}

}  // namespace oslo
