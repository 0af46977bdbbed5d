#include "parallelizers/pipeline/schedule/order/rank_list.h"

#include <algorithm>

namespace oslo::pipeline {

RankList::RankList(int stages, int micro_batches)
    : micro_batches_(micro_batches), forwards_(stages, 0), backwards_(stages, 0) {}

void RankList::backward_input(int stage) {
  const int micro_batch = backwards_[stage]++;
  add(Pass::backward_input, stage, micro_batch);
  no_weight_yet_.push_back({Pass::backward_weight, stage, micro_batch});
}

void RankList::backward_weight(int stage) {
  const auto oldest = std::find_if(no_weight_yet_.begin(), no_weight_yet_.end(),
                                   [&](const Action& action) { return action.stage == stage; });
  if (oldest == no_weight_yet_.end()) return;
  add(Pass::backward_weight, stage, oldest->micro_batch);
  no_weight_yet_.erase(oldest);
}

bool RankList::backward_weight() {
  if (no_weight_yet_.empty()) return false;
  backward_weight(no_weight_yet_.front().stage);
  return true;
}

// A schedule whose pattern needs more micro-batches than there are is written with as many as it
// needs; those past the end are left out. What is left keeps its order, so it still can run.
void RankList::add(Pass pass, int stage, int micro_batch) {
  if (micro_batch < micro_batches_) actions_.push_back({pass, stage, micro_batch});
}

}  // namespace oslo::pipeline
