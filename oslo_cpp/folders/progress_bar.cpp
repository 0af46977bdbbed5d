#include "oslo_cpp/folders/progress_bar.h"

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <iostream>
#include <utility>

#include "checkpoint/folders/size_text.h"

namespace oslo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kBetween = std::chrono::milliseconds(200);

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::ceil(seconds));
  if (whole < 60) return std::to_string(whole) + " s";
  if (whole < 3600) return std::to_string(whole / 60) + " min " + std::to_string(whole % 60) + " s";
  return std::to_string(whole / 3600) + " h " + std::to_string(whole / 60 % 60) + " min";
}

}  // namespace

std::string progress_text(uint64_t done, uint64_t all, double seconds) {
  constexpr int kWidth = 24;
  const double share = all == 0 ? 1 : static_cast<double>(done) / static_cast<double>(all);
  const int filled = static_cast<int>(share * kWidth);
  char percent[16];
  std::snprintf(percent, sizeof percent, "%3d %%", static_cast<int>(share * 100));
  std::string text = "[" + std::string(filled, '#') + std::string(kWidth - filled, '.') + "] " +
                     percent + "  " + size_text(static_cast<double>(done)) + " of " +
                     size_text(static_cast<double>(all));
  if (seconds <= 0 || done == 0) return text;
  const double rate = static_cast<double>(done) / seconds;
  return text + "  " + size_text(rate) + "/s  " +
         duration_text(static_cast<double>(all - done) / rate) + " left";
}

ProgressBar::ProgressBar(std::string command)
    : command_(std::move(command)),
      on_terminal_(::isatty(STDERR_FILENO) != 0),
      begun_(Clock::now()) {}

ProgressBar::~ProgressBar() {
  if (shown_) std::cerr << "\r\033[K" << std::flush;
}

void ProgressBar::show(uint64_t done, uint64_t all) {
  if (!on_terminal_) return;
  const Clock::time_point now = Clock::now();
  if (shown_ && now - last_ < kBetween && done < all) return;
  shown_ = true;
  last_ = now;
  std::cerr << "\r" << command_ << "  " << progress_text(done, all, seconds_between(begun_, now))
            << "\033[K" << std::flush;
}

}  // namespace oslo
