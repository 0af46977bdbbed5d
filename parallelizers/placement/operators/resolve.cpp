#include "parallelizers/placement/operators/dimension_map.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <limits>

#include "mpu/base/error.h"
#include "mpu/base/foreign_scope.h"
#include "parallelizers/placement/layout/cuts/cut_requests.h"
#include "parallelizers/placement/layout/gather_watch.h"
#include "parallelizers/placement/layout/moving/other_mesh.h"
#include "parallelizers/placement/layout/moving/recut.h"
#include "parallelizers/placement/layout/purpose.h"
#include "parallelizers/placement/operators/planned_results.h"

namespace oslo {
namespace {

constexpr char kFree = '-';

ContextPtr context_of_operands(std::span<const Value> operands) {
  ContextPtr context;
  for (const Value& operand : operands) {
    if (!operand.layout) continue;
    const ContextPtr& own = operand.layout->context();
    if (!context) context = own;
    check_one_mesh(context, own);
  }
  return context;
}

/// The work on one axis of the mesh.
class AxisResolver {
 public:
  /// `weight`: the operand that the plan speaks of, and what it says (`use`, which goes with the
  /// operand's first move); -1: none.
  AxisResolver(const DimensionMap& map, std::span<Value> operands, const ContextPtr& context,
               int axis, int weight, WeightUse use)
      : map_(map),
        operands_(operands),
        context_(context),
        axis_(axis),
        weight_(weight),
        use_(use) {}

  Resolution::Axis run(Keep keep) {
    const Resolution::Axis kept = keep == Keep::first_operand ? of_first() : cheapest();
    if (context_->gather_watch) announce(kept);
    for (size_t i = 0; i < operands_.size(); ++i) {
      if (operands_[i].defined()) move(i, kept);
    }
    return kept;
  }

 private:
  /// The letter that operand `i` is cut on here; 0 when it is whole.
  char letter_of(size_t i) const {
    const Value& operand = operands_[i];
    if (!operand.defined() || !operand.layout || (*operand.layout)[axis_].whole()) return 0;
    return map_.operands[i][(*operand.layout)[axis_].dim];
  }

  /// The cut of operand `i` in units that the other operands share; null when it does not divide.
  CutPtr shared_cut(size_t i, char letter) const {
    const CutPtr& cut = (*operands_[i].layout)[axis_].cut;
    const int64_t factor = map_.factor(i, letter);
    return factor == 1 ? cut : cut->divided(factor);
  }

  Resolution::Axis of_first() const {
    const char letter = letter_of(0);
    CutPtr cut = can_stay(letter) ? shared_cut(0, letter) : nullptr;
    return cut ? Resolution::Axis{letter, std::move(cut)} : Resolution::Axis();
  }

  /// Whether the operands can be cut on it. Of a sparse tensor that is whole no part can be taken.
  bool can_stay(char letter) const {
    if (letter == 0 || letter == kFree || contains(map_.whole, letter)) return false;
    for (size_t i = 0; i < operands_.size(); ++i) {
      const bool sparse = operands_[i].defined() && operands_[i].local.layout() != at::kStrided;
      if (sparse && letter_of(i) == 0 && contains(map_.operands[i], letter)) return false;
    }
    return true;
  }

  bool in_results(char letter) const {
    for (const std::string& result : map_.results) {
      if (contains(result, letter)) return true;
    }
    return false;
  }

  /// Elements that would have to be gathered if `kept` stayed. Global sizes: every rank must come
  /// to the same decision, and local sizes differ.
  int64_t cost_of(const Resolution::Axis& kept) const {
    int64_t cost = 0;
    for (size_t i = 0; i < operands_.size(); ++i) {
      if (letter_of(i) == 0 || stays(i, kept)) continue;
      int64_t elements = 1;
      for (const int64_t size : operands_[i].sizes()) elements *= size;
      cost += elements;
    }
    return cost;
  }

  /// Whether the plan has the weight brought to where its input is.
  bool brings_weight() const { return weight_ >= 0 && use_[axis_].brings_weight; }

  /// Where the plan's weight has the letter of a result, in whole units, that is kept.
  Resolution::Axis cheapest() const {
    const bool brought = brings_weight();
    if (weight_ >= 0 && !brought) {
      const char letter = letter_of(weight_);
      CutPtr cut = can_stay(letter) && in_results(letter) ? shared_cut(weight_, letter) : nullptr;
      if (cut) return {letter, std::move(cut)};
    }
    Resolution::Axis best;
    int64_t best_cost = std::numeric_limits<int64_t>::max();
    for (size_t i = 0; i < operands_.size(); ++i) {
      if (brought && static_cast<int>(i) == weight_) continue;
      const char letter = letter_of(i);
      if (!can_stay(letter)) continue;
      CutPtr cut = shared_cut(i, letter);
      if (!cut || (letter == best.letter && *cut == *best.cut)) continue;
      Resolution::Axis candidate{letter, std::move(cut)};
      // A letter of the result first: it needs no reduction and the result stays cut.
      const int64_t cost = cost_of(candidate) + (in_results(letter) ? 0 : int64_t{1} << 50);
      if (cost < best_cost) {
        best = std::move(candidate);
        best_cost = cost;
      }
    }
    return best;
  }

  bool stays(size_t i, const Resolution::Axis& kept) const {
    if (letter_of(i) != kept.letter) return false;
    const CutPtr cut = shared_cut(i, kept.letter);
    return cut && (cut == kept.cut || *cut == *kept.cut);
  }

  void move(size_t i, const Resolution::Axis& kept) {
    Value& operand = operands_[i];
    const char letter = letter_of(i);
    if (letter != 0) {
      if (stays(i, kept)) return;
      if (letter == kept.letter) {
        const int64_t factor = map_.factor(i, letter);
        const CutPtr cut = factor == 1 ? kept.cut : kept.cut->scaled(factor);
        if (can_recut(operand, axis_, (*operand.layout)[axis_].dim, *cut)) {
          operand = recut_axis(std::move(operand), axis_, cut);
          return;
        }
      }
      const bool lacks = kept.letter != 0 && !contains(map_.operands[i], kept.letter);
      const bool no_loss = expected(i, letter);
      if (!no_loss) report(i, letter, kept);
      const AskerScope asker =
          AskerScope::with_purpose(no_loss ? purpose::kPlanned : purpose::kGather);
      operand = gather_axis(std::move(operand), axis_, lacks);
      if (lacks) return;
    }
    if (kept.letter == 0) return;
    const size_t dim = map_.operands[i].find(kept.letter);
    if (dim == std::string::npos) {
      operand = copy_axis(std::move(operand), context_->mesh(), axis_);
      return;
    }
    const int64_t factor = map_.factor(i, kept.letter);
    operand = split_axis(std::move(operand), context_, axis_, static_cast<int64_t>(dim),
                         factor == 1 ? kept.cut : kept.cut->scaled(factor));
  }

  /// Tells of all that will be gathered, before anything moves.
  void announce(const Resolution::Axis& kept) const {
    for (size_t i = 0; i < operands_.size(); ++i) {
      const char letter = letter_of(i);
      if (letter == 0 || stays(i, kept) || expected(i, letter)) continue;
      announce_gather(operands_[i], RuleScope::current(), reason(i, letter, kept));
    }
  }

  /// Whether the plan has operand `i` gathered: an input, for the weight beside it; a weight that
  /// several axes spread, for its input, which the plan cuts by another dimension (2D and 3D).
  bool planned(size_t i) const {
    if (weight_ < 0 || letter_of(weight_) == 0) return false;
    if (static_cast<int>(i) != weight_) return true;
    return context_->mesh().axes() > 1 && use_[axis_].result == AxisUse::Result::reduce;
  }

  /// Whether gathering operand `i` is how the operator is done, and no loss to be told.
  bool expected(size_t i, char letter) const {
    return planned(i) || contains(map_.brought, letter);
  }

  std::string reason(size_t i, char letter, const Resolution::Axis& kept) const {
    const auto& [dim, cut] = (*operands_[i].layout)[axis_];
    const char* why = contains(map_.whole, letter) ? "needs it whole"
                      : letter == kept.letter      ? "is cut into other pieces than another operand"
                      : letter == kFree            ? "has one element there"
                                                   : "is cut elsewhere than another operand";
    return c10::str("operand ", i, ", dimension ", dim, ": ", why,
                    cut->origin() ? " (from " + cut->origin()->parameter + ")" : "");
  }

  void report(size_t i, char letter, const Resolution::Axis& kept) const {
    const auto& [dim, cut] = (*operands_[i].layout)[axis_];
    if (letter == kept.letter) {
      wish_same_pieces(*cut, *kept.cut, map_.factor(i, letter));
      if (const CutPtr own = shared_cut(i, letter)) wish_same_pieces(*kept.cut, *own, 1);
    }
    const int64_t parts = cut->size() - cut->local_size(context_->mesh().axis(axis_)->rank());
    const int64_t row = operands_[i].local.size(dim) == 0
                            ? 0
                            : operands_[i].local.numel() / operands_[i].local.size(dim);
    context_->gathers().record(
        RuleScope::current(), reason(i, letter, kept),
        row * parts * static_cast<int64_t>(operands_[i].local.element_size()));
  }

  const DimensionMap& map_;
  std::span<Value> operands_;
  const ContextPtr& context_;
  int axis_;
  int weight_;
  WeightUse use_;
};

/// Whether `operand` is cut on `axis` inside the cut of an axis that is not among `done`.
bool lies_inside(const Value& operand, int axis, c10::ArrayRef<int> done) {
  if (!operand.defined() || !operand.layout || (*operand.layout)[axis].whole()) return false;
  const auto& [dim, cut] = (*operand.layout)[axis];
  if (cut->family().empty()) return false;
  for (const int outer : operand.axes_cutting(dim)) {
    if (outer == axis) break;
    if (std::ranges::find(done, outer) == done.end()) return true;
  }
  return false;
}

/// The next axis to resolve, in the mesh's order, but outer axes before those that cut inside them.
/// Where operands nest against each other the inner cuts are gathered.
int next_axis(std::span<Value> operands, const ModelContext& context, c10::ArrayRef<int> done) {
  int first = -1;
  for (int axis = 0; axis < context.mesh().axes(); ++axis) {
    if (std::ranges::find(done, axis) != done.end()) continue;
    const bool inside = std::ranges::any_of(
        operands, [&](const Value& operand) { return lies_inside(operand, axis, done); });
    if (!inside) return axis;
    if (first < 0) first = axis;
  }
  for (Value& operand : operands) {
    if (!lies_inside(operand, first, done)) continue;
    const std::string reason = "is cut by several axes in another order than another operand";
    announce_gather(operand, RuleScope::current(), reason);
    const at::Tensor before = operand.local;
    operand = gather_axis(std::move(operand), first);
    context.gathers().record(
        RuleScope::current(), reason,
        (operand.local.numel() - before.numel()) * static_cast<int64_t>(before.element_size()));
  }
  return first;
}

/// Global sizes: a mismatch must be seen by every rank, and before a collective.
void check_sizes(const DimensionMap& map, std::span<const Value> operands) {
  std::array<int64_t, 256> known;  // by letter
  known.fill(-1);
  for (size_t i = 0; i < operands.size(); ++i) {
    if (!operands[i].defined()) continue;
    const std::string& own = map.operands[i];
    for (size_t d = 0; d < own.size(); ++d) {
      if (own[d] == kFree || contains(map.whole, own[d])) continue;
      const int64_t size = operands[i].size(static_cast<int64_t>(d)) / map.factor(i, own[d]);
      int64_t& expected = known[static_cast<unsigned char>(own[d])];
      if (expected < 0) expected = size;
      if (expected != size) {
        throw ShapeMismatch(c10::str(RuleScope::current(), ": operand ", i, " of shape ",
                                     c10::IntArrayRef(operands[i].sizes()), " has ", size,
                                     " in dimension ", d, ", another operand has ", expected));
      }
    }
  }
}

/// Resolves shapes in the operands' place, without moving or counting anything, so that a watch
/// that refuses a gather does so before another axis has moved something.
void rehearse(const DimensionMap& map, std::span<const Value> operands, Keep keep) {
  const ForeignScope silent(true);
  std::vector<Value> shapes(operands.begin(), operands.end());
  for (Value& each : shapes) {
    if (!each.defined()) continue;
    each.local = at::empty_like(each.local, each.local.options().device(at::kMeta));
    each.strides.clear();
  }
  resolve(map, shapes, keep);
}

}  // namespace

Resolution resolve(const DimensionMap& map, std::span<Value> operands, Keep keep) {
  Resolution resolution(context_of_operands(operands));
  if (!resolution.context()) return resolution;
  if (operands.size() > 1) check_sizes(map, operands);
  const ContextPtr& context = resolution.context();
  const Mesh& mesh = context->mesh();
  const auto& watch = context->gather_watch;
  if (watch && watch->refuses() && mesh.axes() > 1 && !ForeignScope::active()) {
    rehearse(map, operands, keep);
  }
  const int weight = planned_weight(operands);
  WeightUse use;
  if (weight >= 0) {
    use = operands[weight].use;
    resolution.set_use(use);
    cut_inputs(operands, context, weight);
  }
  Axes done;
  while (static_cast<int>(done.size()) < mesh.axes()) {
    const int axis = next_axis(operands, *context, done);
    if (mesh.axis(axis)->size() > 1) {
      resolution.axis(axis) = AxisResolver(map, operands, context, axis, weight, use).run(keep);
    }
    done.push_back(axis);
  }
  for (const auto& scale : map.scales) {
    if (scale.operand == DimensionMap::kResult)
      resolution.scale_results(scale.letter, scale.factor);
  }
  return resolution;
}

}  // namespace oslo
