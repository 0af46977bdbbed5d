#pragma once

#include <compare>
#include <string>
#include <vector>

namespace oslo::pipeline {

/// What an action computes. A backward pass is either one `backward`, or a `backward_input` (the
/// gradients of what the stage received) and later a `backward_weight` (those of its parameters):
/// zero bubble, Qi et al. 2023.
enum class Pass { forward, backward, backward_input, backward_weight };

/// One entry of a rank's list: this pass of this stage for this micro-batch.
///
/// An action says nothing of messages; they follow from what stages exchange (graph.h). A value is
/// sent when it has been computed, a send never waits, and a receive is posted just before the
/// action that uses it.
struct Action {
  Pass pass = Pass::forward;
  int stage = 0;        ///< over all ranks, from 0; values flow to higher stages
  int micro_batch = 0;  ///< from 0
  auto operator<=>(const Action&) const = default;
};

/// "2F0": the forward of stage 2 for micro-batch 0. B is a whole backward, I and W its parts for
/// the input and the weights.
std::string to_text(const Action& action);

/// Who does what in which order, in one step: data, made by `make_schedule` or read by
/// `parse_schedule`. Each rank follows its own list from front to back. Without LibTorch.
struct Schedule {
  std::string kind;       ///< "1f1b", "zbv", ... (kinds.h), or the name of a list of one's own
  int ranks = 1;          ///< along the pipeline axis
  int micro_batches = 1;  ///< of one step
  int chunks = 1;         ///< stages a rank has
  std::vector<int> rank_of_stage;            ///< by stage; ranks * chunks entries
  std::vector<std::vector<Action>> actions;  ///< by rank

  int stages() const { return static_cast<int>(rank_of_stage.size()); }
  /// The stages of `rank`, ascending.
  std::vector<int> stages_of(int rank) const {
    std::vector<int> found;
    for (int stage = 0; stage < stages(); ++stage) {
      if (rank_of_stage[stage] == rank) found.push_back(stage);
    }
    return found;
  }
  bool operator==(const Schedule&) const = default;
};

}  // namespace oslo::pipeline
