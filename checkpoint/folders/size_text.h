#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>

namespace oslo {

/// Bytes as people read them, in powers of 1000: "0 B", "12.3 MB".
inline std::string size_text(double bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "kB", "MB", "GB", "TB"};
  size_t unit = 0;
  while (bytes >= 999.95 && unit + 1 < kUnits.size()) {
    bytes /= 1000;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, kUnits[unit]);
  return text;
}

}  // namespace oslo
