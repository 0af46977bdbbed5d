#include <algorithm>

#include "parallelizers/pipeline/schedule/order/patterns.h"
#include "parallelizers/pipeline/schedule/order/rank_list.h"

namespace oslo::pipeline {

std::vector<Action> zero_bubble_v(const PatternSizes& sizes) {
  const int ranks = sizes.ranks;
  const int rank = sizes.rank;
  const int down = rank;                // the stage on the way to the last rank
  const int up = 2 * ranks - 1 - rank;  // the stage on the way back
  // Fewer do not fill the pipeline; those past the end are left out of the list.
  const int micro_batches = std::max(sizes.micro_batches, 2 * ranks - 1);
  RankList list(2 * ranks, sizes.micro_batches);

  for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) list.forward(down);
  for (int i = 0; i < rank; ++i) {
    list.forward(up);
    list.forward(down);
  }
  for (int i = 0; i < ranks - rank; ++i) {
    list.forward(up);
    list.split_backward(up);
  }
  while (list.forwards(up) < micro_batches) {
    if (list.forwards(down) < micro_batches) list.forward(down);
    list.split_backward(down);
    list.forward(up);
    list.split_backward(up);
  }
  // Nothing is left to compute forward: the weights' parts fill the time until gradients arrive.
  for (int i = 0; i < rank; ++i) {
    list.backward_input(down);
    list.backward_input(up);
  }
  for (int i = 0; i < ranks - rank; ++i) {
    list.backward_input(down);
    list.backward_weight(down);
  }
  for (int i = 0; i < rank; ++i) list.backward_weight(up);
  while (list.backward_weight()) continue;
  return list.take();
}

std::vector<Action> dual_pipe_v(const PatternSizes& sizes) {
  const int ranks = sizes.ranks;
  const int rank = sizes.rank;
  const int behind = ranks - rank - 1;  // ranks between this one and the turn
  const int down = rank;
  const int up = 2 * ranks - 1 - rank;
  RankList list(2 * ranks, sizes.micro_batches);

  for (int i = 0; i < 2 * behind; ++i) list.forward(down);
  for (int i = 0; i <= rank; ++i) {
    list.forward(down);
    list.forward(up);
  }
  for (int i = 0; i < behind; ++i) {
    list.split_backward(up);
    list.forward(up);
  }
  // In DualPipe each of these pairs is computed together; here one after the other.
  for (int i = 0; i < sizes.micro_batches - 2 * ranks + rank + 1; ++i) {
    list.forward(down);
    list.backward(up);
    list.forward(up);
    list.backward(down);
  }
  for (int i = 0; i < behind; ++i) {
    list.backward(up);
    list.forward(up);
    list.backward(down);
  }
  // From the middle of these on the weights' parts are put off, to fill the time at the end.
  for (int i = 0; i < 2 * (rank + 1); ++i) {
    const int stage = i % 2 == 0 ? up : down;
    if (i > rank) {
      list.backward_input(stage);
    } else {
      list.backward(stage);
    }
  }
  for (int i = 0; i < behind; ++i) {
    list.backward_weight();
    list.backward_input(down);
  }
  while (list.backward_weight()) continue;
  return list.take();
}

}  // namespace oslo::pipeline
