#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "parallelizers/memory/recompute/record/call_state.h"
#include "parallelizers/memory/recompute/record/operator_record.h"

namespace oslo::recompute {

/// Operators that are run again in backward, as forward ran them, and what they saved.
struct Segment {
  std::vector<OperatorRecord> operators;
  std::vector<MetStorage> storages;
  std::vector<OutsideTensor> outside;
  /// What was saved between two operators (by a node of the program's own), by how many had run.
  std::unordered_map<int, std::vector<std::weak_ptr<SavedSlot>>> saved_between;
  /// Runs all operators of the segment, in order; empty: the records are replayed (replay.h).
  std::function<void()> again;
  std::function<void()> about_to_rerun;  ///< told in backward, where somebody wants to know
  std::string no_replay;                 ///< why records cannot be replayed; empty where they can
  std::optional<CallState> state;
  bool weighs = false;      ///< notes how much all of its operators compute
  bool whole = false;       ///< operators that nobody needs run again, too
  double keep_at_most = 1;  ///< of what it would save, as a share (needs.h)
  /// Of the operators whose kind is to be kept, in order, those whose results are given up for
  /// that; empty: not decided yet. Not by number: a rank may compute something for itself.
  std::vector<bool> given_up;
  bool ended = false;
  std::vector<bool> needed;  ///< operators that run again; of a segment that has ended
  std::mutex mutex;          ///< of those who use what was saved

  /// Calls `visit` with each slot that somebody may still ask for, and its operator (kNone between
  /// operators).
  void for_each_slot(const std::function<void(SavedSlot&, int)>& visit) const;
};

/// What it met that was there before, and still is.
std::vector<c10::Storage> outside_memory(const Segment& segment);

}  // namespace oslo::recompute
