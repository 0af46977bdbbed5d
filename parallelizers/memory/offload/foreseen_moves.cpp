#include "parallelizers/memory/offload/foreseen_moves.h"

#include <algorithm>

namespace oslo::offload {
namespace {

/// The values that are large enough to be moved, as the store has them in its list.
class List {
 public:
  List(const std::vector<SavedValue>& values, int forward_end, const OffloadOptions& options)
      : values_(values), moves_(values.size()), ahead_(options.ahead()) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i].bytes >= options.at_least()) places_.push_back(i);
    }
    std::stable_sort(places_.begin(), places_.end(), [&](size_t a, size_t b) {
      return values[a].savers.front() < values[b].savers.front();
    });
    asked_for_.resize(places_.size());
    taken_.resize(static_cast<size_t>(forward_end));
    for (size_t place = 0; place < places_.size(); ++place) {
      const std::vector<int>& savers = values[places_[place]].savers;
      asked_for_[place] = savers.size();
      for (const int saver : savers) taken_[saver].push_back(place);
    }
  }

  std::vector<ForeseenMove> moves() {
    forward();
    backward();
    return std::move(moves_);
  }

 private:
  void forward() {
    int64_t waiting = 0;
    size_t next = 0;
    for (size_t place = 0; place < places_.size(); ++place) {
      const SavedValue& saved = values_[places_[place]];
      waiting += saved.bytes;
      while (waiting > ahead_ && next < place) {
        const SavedValue& oldest = values_[places_[next]];
        waiting -= oldest.bytes;
        const int leaves = std::max(saved.savers.front(), oldest.held_until);
        if (leaves < static_cast<int>(taken_.size())) moves_[places_[next]].leaves = leaves;
        ++next;
      }
    }
  }

  void backward() {
    for (int op = static_cast<int>(taken_.size()); op-- > 0;) {
      for (size_t i = taken_[op].size(); i-- > 0;) take(taken_[op][i], op);
    }
  }

  void take(size_t place, int op) {
    fetch(place, op);
    --asked_for_[place];
    int64_t bytes = 0;
    while (place-- > 0) {
      if (asked_for_[place] == 0) continue;
      bytes += values_[places_[place]].bytes;
      if (bytes > ahead_) return;
      fetch(place, op);
    }
  }

  void fetch(size_t place, int op) {
    ForeseenMove& move = moves_[places_[place]];
    if (move.moves() && move.returns == ForeseenMove::kNever) move.returns = op;
  }

  const std::vector<SavedValue>& values_;
  std::vector<ForeseenMove> moves_;
  const int64_t ahead_;
  std::vector<size_t> places_;              ///< values, as they are saved
  std::vector<size_t> asked_for_;           ///< so often, by places
  std::vector<std::vector<size_t>> taken_;  ///< places, by the operators whose backward asks
};

}  // namespace

std::vector<ForeseenMove> foresee_moves(const std::vector<SavedValue>& values, int forward_end,
                                        const OffloadOptions& options) {
  return List(values, forward_end, options).moves();
}

}  // namespace oslo::offload
