#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "parallelizers/placement/residency/stage_set.h"

namespace oslo {

/// Which rank of a pipeline has which stages, and which of its ranks this one is. A rank has one
/// stage, or several: dealt out in turn (stage s on rank s mod ranks; Narayanan et al. 2021), or
/// down the ranks and back up (rank r has r and 2 * ranks - 1 - r; Qi et al. 2024).
class StageRanks {
 public:
  /// One stage, on this rank.
  StageRanks() : StageRanks({0}, 0) {}
  /// `rank_of_stage`: a rank for each stage, from 0; every rank has one.
  StageRanks(std::vector<int> rank_of_stage, int rank)
      : rank_of_stage_(std::move(rank_of_stage)), rank_(rank) {
    for (int stage = 0; stage < stages(); ++stage) {
      if (rank_of_stage_[stage] == rank) own_ = own_ | StageSet::of(stage);
    }
  }
  /// Stage r on rank r.
  static StageRanks one_each(int ranks, int rank) {
    std::vector<int> rank_of_stage;
    for (int stage = 0; stage < ranks; ++stage) rank_of_stage.push_back(stage);
    return {std::move(rank_of_stage), rank};
  }
  /// This rank has no stage at all, as in the planner's runs.
  static StageRanks nowhere() { return {{}, -1}; }

  int rank() const { return rank_; }
  int stages() const { return static_cast<int>(rank_of_stage_.size()); }
  int ranks() const {
    return stages() == 0 ? 0 : 1 + *std::max_element(rank_of_stage_.begin(), rank_of_stage_.end());
  }
  const std::vector<int>& rank_of_stage() const { return rank_of_stage_; }
  int rank_of(int stage) const { return rank_of_stage_[stage]; }

  /// This rank's stages.
  StageSet own() const { return own_; }
  bool several() const { return own_.size() > 1; }
  /// Whether this rank has one of `stages`. What no stage in particular has, every rank has.
  bool holds(StageSet stages) const { return stages.empty() || !(stages & own_).empty(); }
  /// The first of this rank's stages among `stages`; one is there.
  int home_of(StageSet stages) const { return (stages & own_).first(); }

  bool on_rank(StageSet stages, int rank) const {
    for (int stage = 0; stage < this->stages(); ++stage) {
      if (stages.contains(stage) && rank_of(stage) == rank) return true;
    }
    return false;
  }
  /// How many ranks have one of `stages`.
  int count_ranks(StageSet stages) const {
    int count = 0;
    for (int rank = 0; rank < ranks(); ++rank) count += on_rank(stages, rank) ? 1 : 0;
    return count;
  }
  /// The lowest stage of `rank` above `stage`; -1: it has none.
  int next_on_rank(int rank, int stage) const {
    for (int next = stage + 1; next < stages(); ++next) {
      if (rank_of(next) == rank) return next;
    }
    return -1;
  }
  /// Of `stages`, from which a value comes to stage `to`: one of the same rank if there is one,
  /// else the nearest. One is below `to`.
  int source_of(StageSet stages, int to) const {
    const int nearest = stages.last_before(to);
    for (int stage = nearest; stage >= 0; --stage) {
      if (stages.contains(stage) && rank_of(stage) == rank_of(to)) return stage;
    }
    return nearest;
  }

  bool operator==(const StageRanks&) const = default;

 private:
  std::vector<int> rank_of_stage_;
  int rank_;
  StageSet own_;
};

}  // namespace oslo
