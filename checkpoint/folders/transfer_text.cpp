#include "checkpoint/folders/transfer_text.h"

#include "checkpoint/folders/size_text.h"
#include "mpu/base/words/progress_text.h"

namespace oslo {

std::string transfer_text(uint64_t done, uint64_t all, double seconds) {
  const double share = all == 0 ? 1 : static_cast<double>(done) / static_cast<double>(all);
  std::string text = bar_text(share) + "  " + size_text(static_cast<double>(done)) + " of " +
                     size_text(static_cast<double>(all));
  if (seconds <= 0 || done == 0) return text;
  const double rate = static_cast<double>(done) / seconds;
  text += "  " + size_text(rate) + "/s  ";
  if (done == all) return text + "in " + duration_text(seconds);
  return text + duration_text(static_cast<double>(all - done) / rate) + " left";
}

}  // namespace oslo
