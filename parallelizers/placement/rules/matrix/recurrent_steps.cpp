#include "parallelizers/placement/rules/matrix/recurrent_steps.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>

#include "parallelizers/placement/layout/value.h"

namespace oslo {
namespace {

using Track = RecurrentTrack;
using Tensors = std::vector<at::Tensor>;

at::Tensor first_rows(const at::Tensor& tensor, int64_t rows) {
  return rows == tensor.size(0) ? tensor : tensor.narrow(0, 0, rows);
}

/// The states of the `rows` sequences of the next step: those that go on, and those that begin.
at::Tensor rows_of_step(const at::Tensor& now, const at::Tensor& before, int64_t rows) {
  if (!now.defined()) return first_rows(before, rows);
  if (rows <= now.size(0)) return first_rows(now, rows);
  return at::cat({now, before.slice(0, now.size(0), rows)});
}

/// Of the state before a step, what has to be gathered; undefined where nothing has.
at::Tensor to_gather(const Track& track, int64_t rows) {
  if (!track.whole_before.defined()) return rows_of_step(track.h, track.h_before, rows);
  if (!track.h.defined()) return {};
  return first_rows(track.h, std::min(rows, track.h.size(0)));
}

void put_away(Tensors& ended, const at::Tensor& state, int64_t rows) {
  if (state.defined() && state.size(0) > rows) ended.push_back(state.slice(0, rows));
}

/// One step, from the whole state before it.
void step(Recurrence kind, Track& track, const at::Tensor& whole, size_t place) {
  const at::Tensor& input = track.inputs[place];
  const int64_t rows = input.size(0);
  const at::Tensor state = at::linear(
      whole, track.w_hh, track.b_hh.defined() ? std::optional(track.b_hh) : std::nullopt);
  put_away(track.ended_h, track.h, rows);
  put_away(track.ended_c, track.c, rows);
  if (kind == Recurrence::lstm) {
    const auto all = (state + input).chunk(4, 1);
    const at::Tensor before = rows_of_step(track.c, track.c_before, rows);
    track.c = all[1].sigmoid() * before + all[0].sigmoid() * all[2].tanh();
    track.h = all[3].sigmoid() * track.c.tanh();
  } else if (kind == Recurrence::gru) {
    const auto given = input.chunk(3, 1), own = state.chunk(3, 1);
    const at::Tensor before = rows_of_step(track.h, track.h_before, rows);
    const at::Tensor keep = (given[1] + own[1]).sigmoid();
    const at::Tensor fresh = (given[2] + (given[0] + own[0]).sigmoid() * own[2]).tanh();
    track.h = fresh + keep * (before - fresh);
  } else {
    const at::Tensor sum = state + input;
    track.h = kind == Recurrence::rnn_tanh ? sum.tanh() : sum.relu();
  }
  track.outputs[place] = track.h;
}

/// Units of every rank, [rows, H], which each goes on to use for its own.
at::Tensor gather_units(const at::Tensor& units, const LayoutPtr& layout) {
  Value value{units, layout};
  const Axes axes = value.axes_cutting(1);
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    value = gather_axis(std::move(value), *axis, /*then_copy=*/true);
  }
  return value.local;
}

}  // namespace

int64_t gates_of(Recurrence kind) {
  return kind == Recurrence::lstm ? 4 : kind == Recurrence::gru ? 3 : 1;
}

at::Tensor last_states(const at::Tensor& state, std::vector<at::Tensor> ended) {
  if (ended.empty()) return state;
  ended.push_back(state);
  std::reverse(ended.begin(), ended.end());
  return at::cat(ended);
}

void run_steps(Recurrence kind, std::vector<RecurrentTrack>& tracks, const LayoutPtr& units) {
  const size_t steps = tracks.front().inputs.size();
  for (size_t s = 0; s < steps; ++s) {
    Tensors parts;
    std::vector<int64_t> sizes;
    for (const Track& track : tracks) {
      const at::Tensor part = to_gather(track, track.inputs[track.place(s)].size(0));
      if (!part.defined()) continue;
      parts.push_back(part);
      sizes.push_back(part.size(0));
    }
    Tensors gathered;
    if (parts.size() == 1) gathered = {gather_units(parts[0], units)};
    if (parts.size() > 1) gathered = gather_units(at::cat(parts), units).split_with_sizes(sizes);
    size_t next = 0;
    for (Track& track : tracks) {
      const size_t place = track.place(s);
      const bool moved = track.h.defined() || !track.whole_before.defined();
      const at::Tensor known = moved ? gathered[next++] : at::Tensor();
      const bool all = known.defined() && !track.whole_before.defined();
      const int64_t rows = track.inputs[place].size(0);
      step(kind, track, all ? known : rows_of_step(known, track.whole_before, rows), place);
    }
  }
}

}  // namespace oslo
