#include "parallelizers/deferred/strips.h"

#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>

#include <algorithm>
#include <string_view>

#include "parallelizers/deferred/content.h"
#include "parallelizers/deferred/mt19937_jump.h"
#include "parallelizers/placement/carrier/arguments.h"

namespace oslo {
namespace {

/// What is computed whole where it cannot be computed in strips.
constexpr int64_t kSmallBytes = int64_t{1} << 20;
/// Shorter runs of elements take longer to find than to compute.
constexpr int64_t kShortRun = 16;

bool is_any_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool leaves_unwritten(const RecordedCall& call) {
  return is_any_of(call.op->name,
                   {"aten::empty.memory_format", "aten::empty_strided", "aten::empty_like",
                    "aten::new_empty", "aten::new_empty_strided"});
}

bool copies(const RecordedCall& call) {
  return is_any_of(call.op->name, {"aten::clone", "aten::_to_copy"});
}

bool joins(const RecordedCall& call) {
  return call.op->name == "aten::cat";
}

bool draws(const RecordedCall& call) {
  return is_any_of(call.op->name, {"aten::uniform_", "aten::normal_"});
}

/// Whether memory and elements are in one order.
bool descending(const Geometry& at) {
  int64_t within = 1;
  for (size_t d = at.sizes.size(); d-- > 0;) {
    if (at.sizes[d] == 1) continue;
    if (at.strides[d] < within) return false;
    within = at.strides[d] * at.sizes[d];
  }
  return true;
}

at::Tensor strip_of(c10::ScalarType type, int64_t elements) {
  return at::empty({elements}, at::TensorOptions(type));
}

}  // namespace

bool Strips::possible(const Recipe& recipe) {
  const auto found = possible_.find(recipe.get());
  if (found != possible_.end()) return found->second;
  bool all = true;
  for (const RecordedStep* step : steps_of(recipe)) {
    all = all && step->at.type == recipe->at.type && possible_step(*step);
  }
  return possible_[recipe.get()] = all;
}

bool Strips::possible_step(const RecordedStep& step) {
  const RecordedCall& call = *step.call;
  if (step.made()) {
    if (!step.at.contiguous() || step.at.offset != 0) return false;
    if (leaves_unwritten(call)) return true;
    if (copies(call)) return readable(call.operands[0]);
    if (joins(call)) {
      return std::all_of(call.operands.begin(), call.operands.end(),
                         [&](const RecordedOperand& each) {
                           return each.at.type == step.at.type && readable(each);
                         });
    }
    return call.op->pointwise && elementwise(step);
  }
  if (!step.at.contiguous() && step.at.run_length() < kShortRun && step.at.numel() > kSmallBytes) {
    return false;
  }
  if (draws(call)) {
    const bool in_blocks = step.at.contiguous() && step.at.numel() >= kNormalBlock;
    return at::isFloatingType(step.at.type) && descending(step.at) &&
           (call.op->name == "aten::uniform_" || in_blocks);
  }
  const bool fills = is_any_of(
      call.op->name, {"aten::fill_.Scalar", "aten::fill_.Tensor", "aten::zero_", "aten::copy_"});
  return (fills || (call.op->pointwise && call.op->in_place)) && elementwise(step);
}

/// Whether each element of the result follows from one of each operand, or from a single one.
bool Strips::elementwise(const RecordedStep& step) {
  const RecordedCall& call = *step.call;
  for (size_t i = 0; i < call.operands.size(); ++i) {
    const RecordedOperand& operand = call.operands[i];
    if (static_cast<int>(i) == step.operand) continue;
    if (!operand.given.defined() && !operand.recipe) return false;
    if (operand.recipe && operand.recipe == step.previous) return false;
    const bool one = operand.at.numel() == 1;
    if (!one && operand.at.sizes != step.at.sizes) return false;
    if (!readable(operand)) return false;
  }
  return true;
}

bool Strips::readable(const RecordedOperand& operand) {
  if (operand.given.defined()) return true;
  if (!operand.recipe) return false;
  if (operand.recipe->bytes <= kSmallBytes) return true;
  const bool runs = operand.at.run_length() >= kShortRun && descending(operand.at);
  return runs && operand.at.type == operand.recipe->at.type && possible(operand.recipe);
}

void Strips::compute(const Recipe& recipe, int64_t begin, const at::Tensor& out) {
  const BelowDeferred below;
  const at::AutoDispatchBelowADInplaceOrView no_graph;
  const int64_t end = begin + out.numel();
  for (const RecordedStep* step : steps_of(recipe)) {
    if (step->made()) {
      make(*step, begin, out);
      continue;
    }
    for_each_run(step->at, 0, step->at.numel(), [&](int64_t logical, int64_t from, int64_t length) {
      const int64_t first = std::max(from, begin);
      const int64_t last = std::min(from + length, end);
      if (first >= last) return;
      write(*step, logical + first - from, out.narrow(0, first - begin, last - first));
    });
  }
}

void Strips::make(const RecordedStep& step, int64_t begin, const at::Tensor& out) {
  const RecordedCall& call = *step.call;
  if (leaves_unwritten(call) || out.numel() == 0) return;
  call.check_operands();
  if (copies(call)) return read(call.operands[0], begin, out);
  if (joins(call)) return join(call, begin, out);
  out.copy_(run_call(call, operands_at(step, begin, out)).front().toTensor());
}

void Strips::write(const RecordedStep& step, int64_t logical, const at::Tensor& out) {
  const RecordedCall& call = *step.call;
  if (draws(call)) return draw(step, logical, out);
  call.check_operands();
  if (call.op->name == "aten::copy_" && call.operands[1].at.numel() != 1) {
    return read(call.operands[1], logical, out);
  }
  run_call(call, operands_at(step, logical, out));
}

/// What an elementwise call computes with: `out` for what it writes to.
std::vector<at::Tensor> Strips::operands_at(const RecordedStep& step, int64_t logical,
                                            const at::Tensor& out) {
  std::vector<at::Tensor> operands;
  for (size_t i = 0; i < step.call->operands.size(); ++i) {
    const RecordedOperand& operand = step.call->operands[i];
    if (static_cast<int>(i) == step.operand) {
      operands.push_back(out);
    } else if (operand.at.numel() == 1) {
      // Numbers and tensors promote types differently: what has dimensions keeps one.
      const at::Tensor value = replay_.value(operand);
      operands.push_back(value.dim() == 0 ? value : value.reshape({1}));
    } else {
      operands.push_back(strip_of(operand.at.type, out.numel()));
      read(operand, logical, operands.back());
    }
  }
  return operands;
}

void Strips::draw(const RecordedStep& step, int64_t logical, const at::Tensor& out) {
  const RecordedCall& call = *step.call;
  const int64_t each = numbers_an_element(step.at.type);
  const int64_t all = step.at.numel();
  const int64_t end = logical + out.numel();
  if (call.op->name == "aten::uniform_") return random(call, logical * each, out);
  // Blocks of 16 elements are computed together; the last 16, where they are no block, again.
  const bool odd = all % kNormalBlock != 0;
  const int64_t again = odd ? all - kNormalBlock : all;
  const int64_t first = std::min(logical, again) / kNormalBlock * kNormalBlock;
  const int64_t last =
      odd && end > again ? all : (end + kNormalBlock - 1) / kNormalBlock * kNormalBlock;
  if (first == logical && last == end) return random(call, first * each, out);
  const at::Tensor blocks = strip_of(step.at.type, last - first);
  random(call, first * each, blocks);
  out.copy_(blocks.narrow(0, logical - first, out.numel()));
}

/// The call's numbers from its `first` one on.
void Strips::random(const RecordedCall& call, uint64_t first, const at::Tensor& out) {
  const auto [found, fresh] = streams_.try_emplace(&call, Stream{call.draws_from->engine, 0});
  Stream& stream = found->second;
  if (stream.drawn > first) stream = {call.draws_from->engine, 0};
  advance(stream.engine, first - stream.drawn);
  at::Generator generator = generator_at({stream.engine, {}, {}});
  run_call(call, {out}, &generator);
  stream.engine = at::check_generator<at::CPUGeneratorImpl>(generator)->engine();
  stream.drawn = first + *numbers_drawn(call.op->name, out);
}

void Strips::join(const RecordedCall& call, int64_t begin, const at::Tensor& out) {
  int64_t dim = call.arguments[1].toInt();
  const auto dims = static_cast<int64_t>(call.operands[0].at.sizes.size());
  if (dim < 0) dim += dims;
  int64_t row = 0;  // of all operands
  std::vector<int64_t> rows;
  for (const RecordedOperand& operand : call.operands) {
    int64_t elements = 1;
    for (int64_t d = dim; d < dims; ++d) elements *= operand.at.sizes[d];
    rows.push_back(elements);
    row += elements;
  }
  const int64_t end = begin + out.numel();
  for (int64_t number = begin / row; number * row < end; ++number) {
    int64_t from = number * row;
    for (size_t i = 0; i < rows.size(); ++i) {
      const int64_t first = std::max(from, begin);
      const int64_t last = std::min(from + rows[i], end);
      if (first < last) {
        read(call.operands[i], number * rows[i] + first - from,
             out.narrow(0, first - begin, last - first));
      }
      from += rows[i];
    }
  }
}

void Strips::read(const RecordedOperand& operand, int64_t logical, const at::Tensor& out) {
  const bool small = operand.recipe && operand.recipe->bytes <= kSmallBytes;
  if (operand.given.defined() || small) {
    const at::Tensor value = replay_.value(operand);
    const Geometry at(value);
    for_each_run(
        at, logical, logical + out.numel(), [&](int64_t first, int64_t offset, int64_t length) {
          out.narrow(0, first - logical, length).copy_(value.as_strided({length}, {1}, offset));
        });
    return;
  }
  if (operand.at.type == out.scalar_type()) return read_runs(operand, logical, out);
  const at::Tensor strip = strip_of(operand.at.type, out.numel());
  read_runs(operand, logical, strip);
  out.copy_(strip);
}

/// Runs that lie close are computed together with what is between them.
void Strips::read_runs(const RecordedOperand& operand, int64_t logical, const at::Tensor& out) {
  struct Run {
    int64_t logical, offset, length;
  };
  const int64_t most = kBytes / static_cast<int64_t>(out.element_size());
  std::vector<Run> runs;
  const auto compute_runs = [&] {
    if (runs.empty()) return;
    const auto part = [&](const Run& run) {
      return out.narrow(0, run.logical - logical, run.length);
    };
    const int64_t begin = runs.front().offset;
    const int64_t end = runs.back().offset + runs.back().length;
    if (runs.size() == 1) {
      compute(operand.recipe, begin, part(runs.front()));
    } else {
      const at::Tensor strip = strip_of(out.scalar_type(), end - begin);
      compute(operand.recipe, begin, strip);
      for (const Run& run : runs) {
        part(run).copy_(strip.narrow(0, run.offset - begin, run.length));
      }
    }
    runs.clear();
  };
  for_each_run(operand.at, logical, logical + out.numel(),
               [&](int64_t first, int64_t offset, int64_t length) {
                 const bool close = !runs.empty() && offset >= runs.back().offset &&
                                    offset + length - runs.front().offset <= most &&
                                    offset - runs.back().offset <= most / 8;
                 if (!close) compute_runs();
                 runs.push_back({first, offset, length});
               });
  compute_runs();
}

}  // namespace oslo
