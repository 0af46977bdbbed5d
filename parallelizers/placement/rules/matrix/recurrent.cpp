#include <ATen/ATen.h>

#include "parallelizers/placement/engine/rule_table.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/index/indexing.h"
#include "parallelizers/placement/rules/parts.h"

namespace oslo {
namespace {

/// lstm, gru, rnn (input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
/// batch_first): sequences of a batch may lie on different ranks. Every step needs the whole hidden
/// state and all gates, so that features, time and the weights must be whole.
void recurrent(Call& call) {
  auto operands = call.operands();
  if (operands[0].dim() != 3) return call.gather("one sequence without a batch");
  if (call.number(5) > 0 && call.boolean(6)) {
    return call.gather("draws the same dropout on every rank");
  }
  const bool batch_first = call.boolean(8);
  const size_t states = call.argument(1).isTensor() ? 1 : call.argument(1).toTensorVector().size();
  DimensionMap map{{batch_first ? "bti" : "tbi"}, {batch_first ? "bto" : "tbo", "lbh"}, "tilhWZ"};
  for (size_t i = 1; i < operands.size(); ++i) {
    map.operands.push_back(i <= states ? "lbh" : operands[i].dim() == 2 ? "WZ" : "W");
  }
  run_on_elements(call, map);
}

/// Rows and their lengths, which are no sums: every rank finds the same.
void run_with_lengths(Call& call, const DimensionMap& map) {
  auto operands = call.operands();
  const Resolution resolution = resolve(map, operands);
  // Without features on this rank the kernel refuses: it is lent one.
  at::Tensor rows = operands[0].local;
  std::vector<std::pair<size_t, int64_t>> lent;  // where in the result, and how many it has
  for (size_t d = 0; d < map.operands[0].size(); ++d) {
    const size_t place = map.results[0].find(map.operands[0][d]);
    if (rows.size(d) != 0 || place == std::string::npos) continue;
    rows = never_empty(rows, static_cast<int64_t>(d));
    lent.emplace_back(place, 0);
  }
  auto returned = call.call_below({rows, operands[1].local});
  at::Tensor first = returned[0].toTensor();
  for (const auto& [place, none] : lent) first = first.narrow(static_cast<int64_t>(place), 0, none);
  call.result(resolution.finish(std::move(first), map.results[0]));
  call.result_plain(returned[1]);
}

/// _pack_padded_sequence(input, lengths, batch_first): rows of all sequences, time by time.
/// Features stay cut.
void pack(Call& call) {
  const std::string features = letters(call.dim(0) - 2);
  const std::string padded = (call.boolean(2) ? "BT" : "TB") + features;
  run_with_lengths(call, {{padded, "B"}, {"R" + features}, "BT"});
}

/// _pad_packed_sequence(data, batch_sizes, batch_first, padding_value, total_length).
void pad_packed(Call& call) {
  const std::string features = letters(call.dim(0) - 1);
  const std::string padded = (call.boolean(2) ? "BT" : "TB") + features;
  run_with_lengths(call, {{"R" + features, "S"}, {padded}, "RS"});
}

/// Sequences of different lengths in one tensor: which rows belong together follows from values.
void packed(Call& call) {
  call.gather("packed sequences");
}

// Cells, (input, hx, w_ih, w_hh, b_ih, b_hh): operands, of which weights are all but the states.

/// A cell with whole weights, rows of the batch cut. False when a weight is cut.
template <size_t States>
bool run_rows(Call& call) {
  const auto operands = call.operands();
  if (operands[0].dim() != 2) return false;
  DimensionMap map{{"bi"}, {"bh"}, "ihWZ"};
  for (size_t i = 1; i < operands.size(); ++i) {
    if (i > States && operands[i].cut()) return false;
    map.operands.push_back(i <= States ? "bh" : operands[i].dim() == 2 ? "WZ" : "W");
  }
  run_on_elements(call, map);
  return true;
}

at::Tensor tensor_at(const Call& call, size_t i) {
  return call.none(i) ? at::Tensor() : call.tensor(i);
}

/// What a cell makes of its input (`i` = 0) or state (1). Weights cut by gate stay cut.
at::Tensor gates(const Call& call, const at::Tensor& x, size_t i) {
  return at::linear(x, call.tensor(2 + i), tensor_at(call, 4 + i));
}

void lstm_cell(Call& call) {
  if (run_rows<2>(call)) return;
  const std::vector<at::Tensor> state = call.argument(1).toTensorVector();
  const auto all = (gates(call, call.tensor(0), 0) + gates(call, state[0], 1)).chunk(4, -1);
  const at::Tensor cell = all[1].sigmoid() * state[1] + all[0].sigmoid() * all[2].tanh();
  call.result_plain(all[3].sigmoid() * cell.tanh());
  call.result_plain(cell);
}

void gru_cell(Call& call) {
  if (run_rows<1>(call)) return;
  const at::Tensor state = call.tensor(1);
  const auto ours = gates(call, call.tensor(0), 0).chunk(3, -1);
  const auto before = gates(call, state, 1).chunk(3, -1);
  const at::Tensor reset = (ours[0] + before[0]).sigmoid();
  const at::Tensor keep = (ours[1] + before[1]).sigmoid();
  const at::Tensor fresh = (ours[2] + reset * before[2]).tanh();
  call.result_plain(fresh + keep * (state - fresh));
}

template <bool relu>
void simple_cell(Call& call) {
  if (run_rows<1>(call)) return;
  const at::Tensor sum = gates(call, call.tensor(0), 0) + gates(call, call.tensor(1), 1);
  call.result_plain(relu ? sum.relu() : sum.tanh());
}

}  // namespace

void add_recurrent_rules(RuleTable& table) {
  table.add({"aten::lstm.input", "aten::gru.input", "aten::rnn_tanh.input", "aten::rnn_relu.input"},
            recurrent);
  table.add({"aten::lstm.data", "aten::gru.data", "aten::rnn_tanh.data", "aten::rnn_relu.data"},
            packed);
  table.add({"aten::_pack_padded_sequence"}, pack);
  table.add({"aten::_pad_packed_sequence"}, pad_packed);
  table.add({"aten::lstm_cell"}, lstm_cell);
  table.add({"aten::gru_cell"}, gru_cell);
  table.add({"aten::rnn_tanh_cell"}, simple_cell<false>);
  table.add({"aten::rnn_relu_cell"}, simple_cell<true>);
}

}  // namespace oslo
