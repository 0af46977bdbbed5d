#include "checkpoint/save/save_progress.h"

#include <algorithm>
#include <iostream>

#include "checkpoint/folders/transfer_text.h"
#include "mpu/base/environment.h"

namespace oslo {
namespace {

constexpr auto kBetweenLines = std::chrono::milliseconds(200);

}  // namespace

SaveProgress::SaveProgress(const char* what, bool shows, uint64_t all)
    : what_(what),
      shows_(shows && all > 0 && read_switch(Variable::verbose).value_or(false)),
      all_(all) {}

void SaveProgress::add(uint64_t bytes) {
  if (!shows_) return;
  done_ = std::min(done_ + bytes, all_);
  const Clock::time_point now = Clock::now();
  const bool ends = done_ == all_;
  if (!ends && now - last_ < kBetweenLines) return;
  last_ = now;
  const double seconds = std::chrono::duration<double>(now - begun_).count();
  std::cerr << "oslo: " << what_ << "  " << transfer_text(done_, all_, seconds)
            << (ends ? "\n" : "\r") << std::flush;
}

}  // namespace oslo
