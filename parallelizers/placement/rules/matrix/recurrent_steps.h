#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "parallelizers/placement/layout/layout.h"

namespace oslo {

/// The recurrences of LibTorch.
enum class Recurrence { lstm, gru, rnn_tanh, rnn_relu };

/// How many stretches of hidden units the weights and biases of one have.
int64_t gates_of(Recurrence kind);

/// This rank's part of one direction of a layer, as it goes along: u of H hidden units, of g gates
/// each. Sequences are ordered by length, so that those of a step are the first of the batch.
struct RecurrentTrack {
  bool reverse = false;
  at::Tensor w_hh, b_hh;           ///< [g u, H], [g u]
  std::vector<at::Tensor> inputs;  ///< by step: what the input gives to the gates, [rows, g u]
  at::Tensor whole_before;         ///< [B, H]; undefined where the state comes cut
  at::Tensor h_before;             ///< this rank's units of it, where they are needed
  at::Tensor c_before;
  at::Tensor h, c;                           ///< after the last step; undefined before the first
  std::vector<at::Tensor> ended_h, ended_c;  ///< of sequences that ended, the longest last
  std::vector<at::Tensor> outputs;           ///< by step

  size_t place(size_t step) const { return reverse ? inputs.size() - 1 - step : step; }
};

/// Runs all steps: `outputs`, and the last states. Before a step the units that others hold are
/// gathered by `units`, the layout of [rows, u], and backward reduce-scatters their gradients; what
/// several directions need is gathered at once. Collective where `units` cuts.
void run_steps(Recurrence kind, std::vector<RecurrentTrack>& tracks, const LayoutPtr& units);

/// The states of the whole batch: of sequences that went on to the last step, and that ended.
at::Tensor last_states(const at::Tensor& state, std::vector<at::Tensor> ended);

}  // namespace oslo
