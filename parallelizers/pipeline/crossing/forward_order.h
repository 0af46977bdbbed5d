#pragma once

#include <algorithm>
#include <vector>

#include "parallelizers/placement/residency/stage_ranks.h"

namespace oslo {

/// Where each rank stands in the forward of one micro-batch, as far as the forward has come: in the
/// action of which of its stages. Every rank runs the whole forward and meets the same crossings in
/// the same order, so all of them know this of each other without a message.
///
/// A rank goes from one of its stages to the next where something has to be brought to that. It
/// runs what later stages make of parameters and of the batch alone where the program has it. A
/// value that a program computes for an early stage behind the work of a later one is sent in the
/// later stage's action. Its receiver comes to it in the first of its stages behind that, or, where
/// it has none, has to wait inside its action. A rank that comes to where the forward looks at a
/// value of a later stage goes on there in the first of its stages behind that, or behind them all;
/// or it stands there until that stage has computed.
class ForwardOrder {
 public:
  ForwardOrder(const StageRanks& ranks, bool stands_at_reads)
      : ranks_(ranks), stands_at_reads_(stands_at_reads) {
    for (int rank = 0; rank < ranks.ranks(); ++rank) {
      standing_.push_back(ranks.next_on_rank(rank, -1));
    }
  }

  /// In the actions of which stages a value is sent and received. They may be on one rank.
  struct Crossing {
    int sent_in = 0;
    int received_in = 0;
    /// The receiver stands inside its action until a later stage has computed.
    bool waits() const { return sent_in > received_in; }
  };

  /// The forward comes to where a value of stage `from` is brought to stage `to`.
  Crossing cross(int from, int to) {
    const int sender = ranks_.rank_of(from), receiver = ranks_.rank_of(to);
    int& stands = standing_[receiver];
    stands = std::max(stands, to);
    const int sent_in = standing_[sender];
    if (sender == receiver) return {stands, stands};
    if (sent_in > stands) {
      const int behind = ranks_.next_on_rank(receiver, sent_in);
      if (behind >= 0) stands = behind;
    }
    return {sent_in, stands};
  }

  /// The forward comes to where a value of `owners` is looked at. Each rank that has none of them
  /// goes on where `standing` then says.
  void read(StageSet owners) {
    if (stands_at_reads_) return;
    const int read_in = standing_[ranks_.rank_of(owners.first())];
    for (int rank = 0; rank < ranks_.ranks(); ++rank) {
      int& stands = standing_[rank];
      if (ranks_.on_rank(owners, rank) || read_in <= stands) continue;
      const int behind = ranks_.next_on_rank(rank, read_in);
      stands = behind >= 0 ? behind : behind_all();
    }
  }

  /// `rank` goes on in the action of `stage`, if it is not behind that.
  void go_on(int rank, int stage) { standing_[rank] = std::max(standing_[rank], stage); }

  /// The stage in whose action `rank` is.
  int standing(int rank) const { return standing_[rank]; }
  /// The place behind all of a rank's forwards, where its backward is.
  int behind_all() const { return ranks_.stages(); }

 private:
  StageRanks ranks_;
  bool stands_at_reads_;
  std::vector<int> standing_;  ///< by rank
};

}  // namespace oslo
