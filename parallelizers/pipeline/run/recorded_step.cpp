#include "parallelizers/pipeline/run/recorded_step.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "mpu/group/messages.h"
#include "parallelizers/libtorch/keys.h"

namespace oslo {
namespace {

using Clock = pipeline::Recorder::Clock;
using Doing = pipeline::Timeline::Doing;

/// An event is a row of doubles.
constexpr int64_t kColumns = 6;

int64_t reading(Clock::time_point time) {
  return time.time_since_epoch().count();
}

}  // namespace

Clock::time_point common_start(Group& stages) {
  const BelowDoor below;
  const RuleScope scope("pipeline recorder");
  const int64_t before = reading(Clock::now());
  stages.exchange(0);
  const Clock::time_point own = Clock::now();
  const std::vector<int64_t> readings = stages.exchange(reading(own));
  // On one clock everybody's reading lies between two of this rank's: none passed the barrier
  // before this rank had come to it.
  const auto [first, last] = std::minmax_element(readings.begin(), readings.end());
  const bool one_clock = *first >= before && *last <= reading(Clock::now());
  return one_clock ? Clock::time_point(Clock::duration(*last)) : own;
}

pipeline::Timeline gathered(Group& stages, const pipeline::Timeline& own) {
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  const RuleScope scope("pipeline recorder");
  const auto& events = own.ranks.at(stages.rank());
  at::Tensor rows = at::empty({static_cast<int64_t>(events.size()), kColumns}, at::kDouble);
  double* value = rows.mutable_data_ptr<double>();
  for (const auto& [doing, action, begin, end] : events) {
    for (const double each : {double(doing), double(action.pass), double(action.stage),
                              double(action.micro_batch), begin, end}) {
      *value++ = each;
    }
  }
  const std::vector<int64_t> sizes = stages.exchange(rows.size(0));
  const at::Tensor all = stages.all_gather(rows, 0, sizes);
  const double* from = all.const_data_ptr<double>();
  pipeline::Timeline timeline;
  for (const int64_t size : sizes) {
    auto& of_rank = timeline.ranks.emplace_back();
    for (int64_t i = 0; i < size; ++i, from += kColumns) {
      const pipeline::Action action{static_cast<pipeline::Pass>(from[1]), static_cast<int>(from[2]),
                                    static_cast<int>(from[3])};
      of_rank.push_back({static_cast<Doing>(from[0]), action, from[4], from[5]});
    }
  }
  return timeline;
}

std::vector<at::Tensor> receive_recorded(Group& group, int from, int tag,
                                         c10::ArrayRef<at::Tensor> like,
                                         pipeline::Recorder* recorder) {
  PendingMessage message = group.start_receive(from, tag, like);
  message.in_rounds();  // a step has each tag once
  if (recorder != nullptr) {
    const pipeline::Recorder::During waits(recorder, Doing::wait);
    message.await_arrival();
  }
  const pipeline::Recorder::During receives(recorder, Doing::receive);
  return message.wait();
}

}  // namespace oslo
