#include <algorithm>

#include "parallelizers/pipeline/schedule/order/patterns.h"
#include "parallelizers/pipeline/schedule/order/rank_list.h"

namespace oslo::pipeline {

std::vector<Action> alternating(const PatternSizes& sizes, const Alternation& how) {
  const auto [ranks, micro_batches, chunks, rank] = sizes;
  const int a_round = micro_batches_a_round(ranks, micro_batches);
  // Forwards go through a rank's stages round by round from the first, backwards from the last.
  const auto forward_stage = [&, ranks = ranks, chunks = chunks, rank = rank](int number) {
    return number / a_round % chunks * ranks + rank;
  };
  const auto backward_stage = [&, chunks = chunks](int number) {
    return forward_stage((chunks - 1 - number / a_round % chunks) * a_round);
  };
  RankList list(ranks * chunks, micro_batches);
  const int total = micro_batches * chunks;
  const int warm_up = std::min(how.warm_up, total);
  for (int number = 0; number < warm_up; ++number) list.forward(forward_stage(number));
  for (int number = 0; number < total; ++number) {
    if (warm_up + number < total) list.forward(forward_stage(warm_up + number));
    if (!how.split) {
      list.backward(backward_stage(number));
      continue;
    }
    list.backward_input(backward_stage(number));
    if (number >= how.weights_lag) list.backward_weight();
  }
  while (list.backward_weight()) continue;
  return list.take();
}

}  // namespace oslo::pipeline
