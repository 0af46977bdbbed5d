#include <ATen/ATen.h>

#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/matrix/recurrent_layer.h"
#include "parallelizers/placement/rules/parts.h"

namespace oslo {
namespace {

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

/// One step of a cell whose weights are cut by hidden unit. False when they are not.
template <Recurrence kind>
bool run_units(Call& call) {
  const std::vector<Value> states = call.is_tensor(1) ? std::vector{call.value(1)} : call.values(1);
  const bool batch = call.dim(0) == 2 && states[0].dim() == 2;
  if (!batch || !by_hidden_unit({call.value(2), call.value(3)}, gates_of(kind))) return false;
  if (call.none(4) != call.none(5)) return false;
  RecurrentDirection direction{call.value(2), call.value(3), call.value(4), call.value(5)};
  direction.h = states[0];
  if (kind == Recurrence::lstm) direction.c = states[1];
  RecurrentOutput output = run_recurrent_layer(call, kind, call.value(0), {direction});
  call.result_plain(std::move(output.all));
  if (kind == Recurrence::lstm) call.result_plain(std::move(output.c[0]));
  return true;
}

void lstm_cell(Call& call) {
  if (run_rows<2>(call) || run_units<Recurrence::lstm>(call)) return;
  const std::vector<at::Tensor> state = call.argument(1).toTensorVector();
  const auto all = (gates(call, call.tensor(0), 0) + gates(call, state[0], 1)).chunk(4, -1);
  const at::Tensor cell = all[1].sigmoid() * state[1] + all[0].sigmoid() * all[2].tanh();
  call.result_plain(all[3].sigmoid() * cell.tanh());
  call.result_plain(cell);
}

void gru_cell(Call& call) {
  if (run_rows<1>(call) || run_units<Recurrence::gru>(call)) return;
  const at::Tensor state = call.tensor(1);
  const auto ours = gates(call, call.tensor(0), 0).chunk(3, -1);
  const auto before = gates(call, state, 1).chunk(3, -1);
  const at::Tensor reset = (ours[0] + before[0]).sigmoid();
  const at::Tensor keep = (ours[1] + before[1]).sigmoid();
  const at::Tensor fresh = (ours[2] + reset * before[2]).tanh();
  call.result_plain((state - fresh) * keep + fresh);  // in the order of the state, as LibTorch's
}

template <Recurrence kind>
void simple_cell(Call& call) {
  if (run_rows<1>(call) || run_units<kind>(call)) return;
  const at::Tensor sum = gates(call, call.tensor(0), 0) + gates(call, call.tensor(1), 1);
  call.result_plain(kind == Recurrence::rnn_relu ? sum.relu() : sum.tanh());
}

}  // namespace

void add_recurrent_cell_rules(RuleTable& table) {
  table.add({"aten::lstm_cell"}, lstm_cell);
  table.add({"aten::gru_cell"}, gru_cell);
  table.add({"aten::rnn_tanh_cell"}, simple_cell<Recurrence::rnn_tanh>);
  table.add({"aten::rnn_relu_cell"}, simple_cell<Recurrence::rnn_relu>);
}

}  // namespace oslo
