#include "parallelizers/placement/rules/matrix/recurrent_layer.h"

#include <ATen/ATen.h>

#include <optional>

#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/layout/cuts/cut_requests.h"
#include "parallelizers/placement/rules/parts.h"

namespace oslo {
namespace {

using Tensors = std::vector<at::Tensor>;

std::optional<at::Tensor> optional_of(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

/// [g H, ..] as [g, H, ..].
Value by_gate(const Call& call, const Value& weight, int64_t gates) {
  auto sizes = weight.sizes();
  sizes[0] /= gates;
  sizes.insert(sizes.begin(), gates);
  return value_of(call.placed(weight).reshape(sizes));
}

/// The operands of one layer, with their letters.
struct Operands {
  DimensionMap map;
  c10::SmallVector<Value, 4> values;

  size_t add(const Value& value, const char* letters) {
    map.operands.emplace_back(letters);
    values.push_back(value);
    return values.size() - 1;
  }
};

/// Where the operands of a direction are; 0 where there is none (which is the input's place).
struct Places {
  size_t w_ih = 0, w_hh = 0, b_ih = 0, b_hh = 0, whole = 0, h = 0, c = 0;
};

Places add_direction(Operands& operands, const Call& call, Recurrence kind,
                     const RecurrentDirection& direction) {
  const int64_t gates = gates_of(kind);
  Places places;
  places.w_ih = operands.add(by_gate(call, direction.w_ih, gates), "ghi");
  places.w_hh = operands.add(by_gate(call, direction.w_hh, gates), "ghk");
  if (direction.b_ih.defined()) {
    places.b_ih = operands.add(by_gate(call, direction.b_ih, gates), "gh");
    places.b_hh = operands.add(by_gate(call, direction.b_hh, gates), "gh");
  }
  const bool comes_cut = direction.h.cut_at(1);
  if (!comes_cut) places.whole = operands.add(direction.h, "bk");
  if (comes_cut || kind == Recurrence::gru) places.h = operands.add(direction.h, "bh");
  if (kind == Recurrence::lstm) places.c = operands.add(direction.c, "bh");
  return places;
}

/// Where the size of one operand does not fit another's, or there is no step: the door gives the
/// operator's own error.
void check_sizes(const Value& x, const RecurrentDirection& direction, int64_t gates) {
  const int64_t units = direction.h.size(1) * gates;
  bool fits = direction.w_ih.dim() == 2 && direction.w_hh.dim() == 2 && x.size(0) > 0;
  fits = fits && direction.w_ih.size(1) == x.size(x.dim() - 1);
  fits = fits && direction.w_hh.size(1) * gates == units;
  for (const Value& each : {direction.w_ih, direction.w_hh, direction.b_ih, direction.b_hh}) {
    fits = fits && (!each.defined() || each.size(0) == units);
  }
  if (!fits) throw ShapeMismatch("operands of a recurrent layer do not fit");
}

RecurrentTrack track_of(const Places& places, c10::ArrayRef<Value> values, bool reverse,
                        const std::vector<int64_t>& lengths) {
  const auto local = [&](size_t i) { return i == 0 ? at::Tensor() : values[i].local; };
  const auto flat = [&](size_t i) { return i == 0 ? at::Tensor() : values[i].local.flatten(0, 1); };
  const at::Tensor& x = values[0].local;
  const at::Tensor input = at::linear(x, flat(places.w_ih), optional_of(flat(places.b_ih)));
  RecurrentTrack track;
  track.reverse = reverse;
  track.w_hh = flat(places.w_hh);
  track.b_hh = flat(places.b_hh);
  track.inputs = x.dim() == 3      ? input.unbind(0)
                 : lengths.empty() ? Tensors{input}
                                   : input.split_with_sizes(lengths);
  track.outputs.resize(track.inputs.size());
  track.whole_before = local(places.whole);
  track.h_before = local(places.h);
  track.c_before = local(places.c);
  return track;
}

/// The states of all steps, [.., directions x H], in the form of the input.
Value join_outputs(const std::vector<RecurrentTrack>& tracks, const Resolution& resolution,
                   const std::string& letters) {
  Tensors each;
  for (const RecurrentTrack& track : tracks) {
    each.push_back(letters.size() == 3 ? at::stack(track.outputs) : at::cat(track.outputs));
  }
  if (each.size() == 1) return resolution.finish(each[0], letters);
  Value all = resolution.finish(at::cat(each, -1), letters);
  if (!all.layout) return all;
  auto layout = std::make_shared<Layout>(*all.layout);
  for (const int axis : resolution.axes_keeping("h")) {
    Layout::AxisCut& cut = (*layout)[axis];
    cut.cut = cut.cut->repeated(static_cast<int64_t>(each.size()));
  }
  all.layout = std::move(layout);
  return all;
}

}  // namespace

bool by_hidden_unit(c10::ArrayRef<Value> weights, int64_t gates) {
  bool rows = !weights.empty(), alike = true;
  for (const Value& weight : weights) {
    rows &= weight.cut() && !weight.cut_at(weight.dim() - 1);
    for (const int axis : weight.axes_cutting(0)) {
      const auto& runs = (*weight.layout)[axis].cut->runs();
      alike &= runs.size() == 1 && runs.front().repeat % gates == 0;
    }
  }
  if (rows && !alike) {
    for (const Value& weight : weights) {
      for (const int axis : weight.axes_cutting(0)) {
        wish_blocks(*(*weight.layout)[axis].cut, gates);
      }
    }
  }
  return rows && alike;
}

RecurrentOutput run_recurrent_layer(const Call& call, Recurrence kind, const Value& x,
                                    const std::vector<RecurrentDirection>& directions,
                                    const std::vector<int64_t>& lengths) {
  const bool packed = !lengths.empty();
  const std::string form = x.dim() == 3 ? "tb" : packed ? "r" : "b";
  Operands operands;
  operands.map.results = {form + "h", "bh"};
  operands.map.whole = packed ? "tgikrb" : "tgik";
  operands.add(x, (form + "i").c_str());
  std::vector<Places> places;
  for (const RecurrentDirection& direction : directions) {
    check_sizes(x, direction, gates_of(kind));
    places.push_back(add_direction(operands, call, kind, direction));
  }
  // Beside a weight that a plan speaks of the input moves, and nobody is told.
  const c10::SmallVector<AxisUse, 2> moves(call.context()->mesh().axes());
  operands.values[places[0].w_ih].use = {moves};
  const Resolution resolution = resolve(operands.map, operands.values);

  std::vector<RecurrentTrack> tracks;
  for (size_t d = 0; d < places.size(); ++d) {
    tracks.push_back(track_of(places[d], operands.values, directions[d].reverse, lengths));
  }
  run_steps(kind, tracks, resolution.layout_of("-h"));

  RecurrentOutput output;
  output.all = call.placed(join_outputs(tracks, resolution, form + "h"));
  for (RecurrentTrack& track : tracks) {
    const auto finished = [&](const at::Tensor& state, Tensors ended) {
      return call.placed(resolution.finish(last_states(state, std::move(ended)), "bh"));
    };
    output.h.push_back(finished(track.h, track.ended_h));
    if (track.c.defined()) output.c.push_back(finished(track.c, track.ended_c));
  }
  return output;
}

}  // namespace oslo
