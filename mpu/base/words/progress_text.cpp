#include "mpu/base/words/progress_text.h"

#include <cmath>
#include <cstdint>
#include <cstdio>

namespace oslo {

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(seconds));
  if (whole < 60) return std::to_string(whole) + " s";
  if (whole < 3600) return std::to_string(whole / 60) + " min " + std::to_string(whole % 60) + " s";
  return std::to_string(whole / 3600) + " h " + std::to_string(whole / 60 % 60) + " min";
}

std::string bar_text(double share) {
  constexpr int kWidth = 24;
  const int filled = static_cast<int>(share * kWidth);
  char percent[16];
  std::snprintf(percent, sizeof percent, "%3d %%", static_cast<int>(share * 100));
  return "[" + std::string(filled, '#') + std::string(kWidth - filled, '.') + "] " + percent;
}

}  // namespace oslo
