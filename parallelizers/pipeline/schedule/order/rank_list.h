#pragma once

#include <utility>
#include <vector>

#include "parallelizers/pipeline/schedule/order/schedule.h"

namespace oslo::pipeline {

/// A rank's list while it is written. In every schedule a stage takes micro-batches in order, so a
/// schedule only says which pass of which stage comes next.
class RankList {
 public:
  RankList(int stages, int micro_batches);

  void forward(int stage) { add(Pass::forward, stage, forwards_[stage]++); }
  void backward(int stage) { add(Pass::backward, stage, backwards_[stage]++); }
  void backward_input(int stage);
  /// The weights' part of the oldest backward of `stage` that lacks it.
  void backward_weight(int stage);
  /// The same of the oldest backward of any stage. False where none lacks it.
  bool backward_weight();
  /// Both parts, one after the other.
  void split_backward(int stage) {
    backward_input(stage);
    backward_weight(stage);
  }

  int forwards(int stage) const { return forwards_[stage]; }
  std::vector<Action> take() { return std::move(actions_); }

 private:
  void add(Pass pass, int stage, int micro_batch);

  int micro_batches_;
  std::vector<int> forwards_, backwards_;  ///< by stage: how many are written
  std::vector<Action> no_weight_yet_;      ///< backward_input, oldest first
  std::vector<Action> actions_;
};

}  // namespace oslo::pipeline
