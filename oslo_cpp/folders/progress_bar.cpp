#include "oslo_cpp/folders/progress_bar.h"

#include <unistd.h>

#include <iostream>
#include <utility>

#include "checkpoint/folders/transfer_text.h"

namespace oslo {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kBetween = std::chrono::milliseconds(200);

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

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
  std::cerr << "\r" << command_ << "  " << transfer_text(done, all, seconds_between(begun_, now))
            << "\033[K" << std::flush;
}

}  // namespace oslo
