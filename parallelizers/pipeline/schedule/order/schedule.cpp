#include "parallelizers/pipeline/schedule/order/schedule.h"

namespace oslo::pipeline {

std::string to_text(const Action& action) {
  return std::to_string(action.stage) + "FBIW"[static_cast<size_t>(action.pass)] +
         std::to_string(action.micro_batch);
}

}  // namespace oslo::pipeline
