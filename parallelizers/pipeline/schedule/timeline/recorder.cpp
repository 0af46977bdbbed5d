#include "parallelizers/pipeline/schedule/timeline/recorder.h"

#include <algorithm>

namespace oslo::pipeline {
namespace {

// What begins together ends the longer the further out it lies.
void sort_by_begin(std::vector<Timeline::Event>& events) {
  std::stable_sort(events.begin(), events.end(),
                   [](const Timeline::Event& a, const Timeline::Event& b) {
                     return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
                   });
}

}  // namespace

Recorder::Recorder(int rank) : rank_(rank) {}

Recorder::During::During(Recorder* recorder, const Action& action)
    : recorder_(recorder), doing_(Timeline::Doing::compute), action_(action) {
  if (recorder_ == nullptr) return;
  begin_ = Clock::now();
  const std::lock_guard<std::mutex> lock(recorder_->mutex_);
  recorder_->under_way_ = action;
}

Recorder::During::During(Recorder* recorder, Timeline::Doing doing)
    : recorder_(recorder), doing_(doing) {
  if (recorder_ == nullptr) return;
  begin_ = Clock::now();
  const std::lock_guard<std::mutex> lock(recorder_->mutex_);
  action_ = recorder_->under_way_;
}

Recorder::During::~During() {
  if (recorder_ != nullptr) recorder_->add(doing_, action_, begin_, Clock::now());
}

void Recorder::start(Clock::time_point now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  start_ = now;
  events_.clear();
}

void Recorder::add(Timeline::Doing doing, const Action& action, Clock::time_point begin,
                   Clock::time_point end) {
  using Milliseconds = std::chrono::duration<double, std::milli>;
  const std::lock_guard<std::mutex> lock(mutex_);
  events_.push_back(
      {doing, action, Milliseconds(begin - start_).count(), Milliseconds(end - start_).count()});
}

Timeline Recorder::timeline() const {
  Timeline timeline;
  timeline.ranks.resize(rank_ + 1);
  const std::lock_guard<std::mutex> lock(mutex_);
  timeline.ranks[rank_] = events_;
  sort_by_begin(timeline.ranks[rank_]);
  return timeline;
}

Timeline joined(const std::vector<Timeline>& timelines) {
  Timeline all;
  for (const Timeline& timeline : timelines) {
    all.ranks.resize(std::max(all.ranks.size(), timeline.ranks.size()));
    for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
      const auto& events = timeline.ranks[rank];
      all.ranks[rank].insert(all.ranks[rank].end(), events.begin(), events.end());
    }
  }
  for (auto& events : all.ranks) sort_by_begin(events);
  return all;
}

}  // namespace oslo::pipeline
