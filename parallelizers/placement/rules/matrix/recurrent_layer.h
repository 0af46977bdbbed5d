#pragma once

#include <vector>

#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/rules/matrix/recurrent_steps.h"

namespace oslo {

/// One direction of a layer. With g gates, H hidden units and I features of the input:
struct RecurrentDirection {
  Value w_ih;                  ///< [g H, I]
  Value w_hh;                  ///< [g H, H]
  Value b_ih = {}, b_hh = {};  ///< [g H]; undefined without biases
  Value h = {};                ///< [B, H], before the first step
  Value c = {};                ///< [B, H], of an LSTM
  bool reverse = false;
};

struct RecurrentOutput {
  at::Tensor all;                ///< the states of all steps, in the form of the input
  std::vector<at::Tensor> h, c;  ///< [B, H] after the last step, of each direction
};

/// Whether weights [g H, ..] are cut by hidden unit: on their rows alone, each gate alike. Where
/// they are cut by rows otherwise, the plan is told which blocks they should have.
bool by_hidden_unit(c10::ArrayRef<Value> weights, int64_t gates);

/// One layer, operator by operator. Weights that are cut by hidden unit stay: each rank computes
/// its units of every step, of both directions at once, from the whole state before. A step takes
/// one all-gather of [B, H] (of both directions together) and backward a reduce-scatter, but for
/// the first where the state comes whole; the input's gradient is one all-reduce. The cells of an
/// LSTM never move. Results are cut by hidden unit. Sequences of a batch may be cut as well.
///
/// `x` is [T, B, I], of a cell [B, I], of packed sequences [rows, I]: `lengths` then says how many
/// rows each step has. An x that is cut by features is gathered, as beside any weight that is cut
/// by output features, and not reported: cutting the layer means that.
RecurrentOutput run_recurrent_layer(const Call& call, Recurrence kind, const Value& x,
                                    const std::vector<RecurrentDirection>& directions,
                                    const std::vector<int64_t>& lengths = {});

}  // namespace oslo
