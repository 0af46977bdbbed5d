#include "mpu/base/bytes.h"

#include <c10/util/StringUtil.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <limits>

namespace oslo {

std::string byte_text(int64_t bytes) {
  if (bytes < 10000) return c10::str(bytes, " B");
  double value = static_cast<double>(bytes) / 1e3;
  const char* unit = "KB";
  for (const char* larger : {"MB", "GB", "TB"}) {
    if (value < 1e4) break;
    value /= 1e3;
    unit = larger;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %s", value, unit);
  return text;
}

std::optional<int64_t> parse_bytes(std::string_view text) {
  double number = 0;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (error != std::errc()) return std::nullopt;
  std::string_view unit = text.substr(end - text.data());
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  double scale = 1;
  if (!unit.empty() && unit != "B") {
    if (!unit.ends_with('B')) return std::nullopt;
    unit.remove_suffix(1);
    const bool binary = unit.size() == 2 && unit[1] == 'i';
    if (unit.size() != (binary ? 2U : 1U)) return std::nullopt;
    const size_t power = std::string_view("KMGT").find(unit[0]);
    if (power == std::string_view::npos) return std::nullopt;
    scale = std::pow(binary ? 1024.0 : 1000.0, static_cast<double>(power + 1));
  }
  const double bytes = std::floor(number * scale);
  const bool fits = bytes >= 1 && bytes < static_cast<double>(std::numeric_limits<int64_t>::max());
  return fits ? std::optional(static_cast<int64_t>(bytes)) : std::nullopt;
}

}  // namespace oslo
