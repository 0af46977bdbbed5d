#pragma once

#include <string>
#include <vector>

#include "parallelizers/pipeline/schedule/order/schedule.h"

namespace oslo::pipeline {

/// What stages need of each other for one micro-batch, the same for every micro-batch.
struct Graph {
  /// The forward of stage `to` uses values of stage `from`, which is lower. With `gradient`, the
  /// backward of `from` needs the gradients that the backward of `to` computes.
  struct Edge {
    int from = 0;
    int to = 0;
    bool gradient = true;  ///< false where only integers, masks or values without gradient cross
    bool operator==(const Edge&) const = default;
  };

  /// The forward of stage `reader` looks at a value that stage `owner` computes (`.item()`, control
  /// flow), whichever of the two is higher. Its owner sends it to all; the reader's forward goes on
  /// when it is there. Where `owner` is higher, the reader has sent its own results before.
  /// Where no operator of the reader's stage follows, an executor may leave the forward there and
  /// take it up at its next action for the micro-batch: then this is no read, for that action comes
  /// behind the owner's anyway.
  struct Read {
    int owner = 0;
    int reader = 0;
    bool operator==(const Read&) const = default;
  };

  int stages = 1;
  std::vector<Edge> edges;
  std::vector<Read> reads;

  /// Each stage feeds the next.
  static Graph chain(int stages);

  /// Adds the reads of a value of stage `owner` that the user's forward looks at. Every rank runs
  /// that forward, so every rank reads: in the action of the highest of its stages up to `owner`,
  /// behind which it stands then, or of its first stage, where all of its stages are higher.
  void read_by_all(int owner, const Schedule& schedule);
};

}  // namespace oslo::pipeline
