#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/autocast_mode.h>

#include <algorithm>

#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/index/indexing.h"
#include "parallelizers/placement/rules/matrix/recurrent_layer.h"
#include "parallelizers/placement/rules/parts.h"

namespace oslo {
namespace {

/// What the operators on sequences have after the input, and after the lengths of packed ones:
/// states, parameters, has_biases, num_layers, dropout, train, bidirectional.
class Arguments {
 public:
  explicit Arguments(const Call& call, bool packed) : call_(call), first_(packed ? 2 : 1) {}

  bool biases() const { return call_.boolean(first_ + 2); }
  int64_t layers() const { return call_.integer(first_ + 3); }
  double dropout() const { return call_.boolean(first_ + 5) ? call_.number(first_ + 4) : 0; }
  size_t directions() const { return call_.boolean(first_ + 6) ? 2 : 1; }
  /// Of one direction of a layer.
  size_t tensors() const { return biases() ? 4 : 2; }

  std::vector<Value> states() const {
    return call_.is_tensor(first_) ? std::vector{call_.value(first_)} : call_.values(first_);
  }
  std::vector<Value> parameters() const { return call_.values(first_ + 1); }
  /// Whether these are the weights and biases of so many layers, and nothing else (projections).
  bool complete(c10::ArrayRef<Value> parameters) const {
    const size_t each = tensors() * directions();
    if (layers() < 1 || parameters.size() != each * static_cast<size_t>(layers())) return false;
    const auto states = this->states();
    return std::all_of(states.begin(), states.end(), [&](const Value& state) {
      return state.dim() == 3 && state.size(0) == layers() * static_cast<int64_t>(directions()) &&
             state.size(2) == states[0].size(2);
    });
  }

 private:
  const Call& call_;
  size_t first_;
};

std::vector<Value> matrices_of(c10::ArrayRef<Value> parameters) {
  std::vector<Value> matrices;
  for (const Value& parameter : parameters) {
    if (parameter.dim() == 2) matrices.push_back(parameter);
  }
  return matrices;
}

/// Under autocast the oneDNN kernel by which LibTorch runs an LSTM of floats on a CPU gives numbers
/// of the narrow type, and by steps some are wide.
bool kernel_narrows(const at::Tensor& result) {
  const at::Context& context = at::globalContext();
  return at::hasMKLDNN() && context.userEnabledMkldnn() && result.is_cpu() &&
         result.scalar_type() == at::kFloat && at::autocast::is_autocast_enabled(at::kCPU);
}

/// Layer by layer and step by step, with weights that are cut by hidden unit or whole.
template <Recurrence kind>
void run_layers(Call& call, bool packed, const std::vector<int64_t>& lengths) {
  const Arguments arguments(call, packed);
  const auto parameters = arguments.parameters();
  std::vector<std::vector<at::Tensor>> before, after;
  for (const Value& state : arguments.states()) before.push_back(call.placed(state).unbind(0));
  after.resize(before.size());
  const bool batch_first = !packed && call.boolean(8);
  at::Tensor x = call.placed(call.value(0));
  if (batch_first) x = x.transpose(0, 1);
  auto next = parameters.begin();
  for (int64_t layer = 0; layer < arguments.layers(); ++layer) {
    if (layer > 0 && arguments.dropout() > 0) x = at::dropout(x, arguments.dropout(), true);
    std::vector<RecurrentDirection> directions;
    for (size_t d = 0; d < arguments.directions(); ++d) {
      const size_t place = static_cast<size_t>(layer) * arguments.directions() + d;
      RecurrentDirection direction{next[0], next[1]};
      if (arguments.biases()) {
        direction.b_ih = next[2];
        direction.b_hh = next[3];
      }
      direction.h = value_of(before[0][place]);
      if (kind == Recurrence::lstm) direction.c = value_of(before[1][place]);
      direction.reverse = d == 1;
      directions.push_back(std::move(direction));
      next += static_cast<int64_t>(arguments.tensors());
    }
    RecurrentOutput output = run_recurrent_layer(call, kind, value_of(x), directions, lengths);
    x = std::move(output.all);
    for (at::Tensor& h : output.h) after[0].push_back(std::move(h));
    for (at::Tensor& c : output.c) after[1].push_back(std::move(c));
  }
  const auto finished = [&](const at::Tensor& result) {
    const bool narrow = kind == Recurrence::lstm && !packed && kernel_narrows(result);
    return narrow ? result.to(at::autocast::get_autocast_dtype(at::kCPU)) : result;
  };
  x = finished(x);
  call.result_plain(batch_first ? x.transpose(0, 1) : x);
  for (const auto& states : after) call.result_plain(finished(at::stack(states)));
}

/// lstm, gru, rnn (input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
/// batch_first): weights may be cut by hidden unit, and sequences of a batch may lie on different
/// ranks. Otherwise features, time and the weights must be whole, as every step needs the whole
/// hidden state and all gates.
template <Recurrence kind>
void recurrent(Call& call) {
  if (call.dim(0) != 3) return call.gather("one sequence without a batch");
  const Arguments arguments(call, /*packed=*/false);
  const auto parameters = arguments.parameters();
  auto operands = call.operands();
  const bool cut = std::any_of(operands.begin(), operands.end(),
                               [](const Value& operand) { return operand.cut(); });
  const bool drops = cut && arguments.dropout() > 0 && arguments.layers() > 1;
  if (arguments.complete(parameters)) {
    if (drops || by_hidden_unit(matrices_of(parameters), gates_of(kind))) {
      return run_layers<kind>(call, /*packed=*/false, {});
    }
  }
  if (drops) return call.gather("draws the same dropout on every rank");
  const bool batch_first = call.boolean(8);
  const size_t states = arguments.states().size();
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

/// How many rows of packed sequences each step has. In the planner's run, as elsewhere, all
/// sequences are as long as the longest.
std::vector<int64_t> lengths_of(const Call& call) {
  const Value lengths = call.value(1);
  const int64_t steps = lengths.size(0), rows = call.value(0).size(0);
  const at::Tensor known = call.elements(
      lengths, [&] { return at::full({steps}, rows / std::max<int64_t>(1, steps), at::kLong); });
  const at::Tensor whole = known.to(at::kCPU, at::kLong).contiguous();
  return {whole.const_data_ptr<int64_t>(), whole.const_data_ptr<int64_t>() + whole.numel()};
}

/// lstm, gru, rnn (data, batch_sizes, hx, params, ..) on sequences of different lengths in one
/// tensor: which rows belong together follows from values, so that they are whole. Weights may be
/// cut by hidden unit.
template <Recurrence kind>
void packed(Call& call) {
  const Arguments arguments(call, /*packed=*/true);
  const auto parameters = arguments.parameters();
  const bool cut =
      arguments.complete(parameters) && by_hidden_unit(matrices_of(parameters), gates_of(kind));
  if (!cut) return call.gather("packed sequences");
  run_layers<kind>(call, /*packed=*/true, lengths_of(call));
}

}  // namespace

void add_recurrent_rules(RuleTable& table) {
  table.add({"aten::lstm.input"}, recurrent<Recurrence::lstm>);
  table.add({"aten::gru.input"}, recurrent<Recurrence::gru>);
  table.add({"aten::rnn_tanh.input"}, recurrent<Recurrence::rnn_tanh>);
  table.add({"aten::rnn_relu.input"}, recurrent<Recurrence::rnn_relu>);
  table.add({"aten::lstm.data"}, packed<Recurrence::lstm>);
  table.add({"aten::gru.data"}, packed<Recurrence::gru>);
  table.add({"aten::rnn_tanh.data"}, packed<Recurrence::rnn_tanh>);
  table.add({"aten::rnn_relu.data"}, packed<Recurrence::rnn_relu>);
  table.add({"aten::_pack_padded_sequence"}, pack);
  table.add({"aten::_pad_packed_sequence"}, pad_packed);
}

}  // namespace oslo
