#include "parallelizers/memory/recompute/try_segment.h"

#include <ATen/ATen.h>

#include <exception>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/base/ledger.h"
#include "parallelizers/memory/recompute/record/needs.h"
#include "parallelizers/memory/recompute/take_saved.h"

namespace oslo::recompute {
namespace {

struct Original {
  SavedSlot* slot;
  at::Tensor value;
  std::string op;  ///< that saved it
  /// A batch normalization's, of a channel: its running statistics are others when it runs again,
  /// and backward reads none of them; the rest are made of its input, which is compared.
  bool of_statistics = false;
};

bool same(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const c10::AutoGradMode no_gradients(false);
  return at::equal(a, b) ||
         (a.is_floating_point() && at::isclose(a, b, 0, 0, /*equal_nan=*/true).all().item<bool>());
}

/// Why it cannot run again; empty where it can.
std::string try_to_run(Segment& segment, const std::vector<Original>& saved) {
  std::unordered_map<const SavedSlot*, const at::Tensor*> before;
  for (const Original& original : saved) before.emplace(original.slot, &original.value);
  std::unordered_set<const SavedSlot*> alike;
  try {
    // Compared one by one, so that no second copy of all that was saved is held.
    run_again(segment, [&](SavedSlot& slot, const at::Tensor& again) {
      if (same(again, *before.at(&slot))) {
        alike.insert(&slot);
      } else {
        alike.erase(&slot);
      }
    });
  } catch (const std::exception& error) {
    if (kind_of(error) == ErrorKind::peer) throw;
    return error.what();
  }
  for (const Original& original : saved) {
    if (original.of_statistics || original.slot->kept || alike.contains(original.slot)) continue;
    return "its operators do not give the same when they run again (" + original.op +
           " had saved something else): the program fills memory by a pointer, or an operator is "
           "not deterministic";
  }
  return {};
}

/// Whether something is wrong on any rank.
bool any_rank(bool wrong, const ModelContext& context, at::Device device) {
  const Mesh& mesh = context.mesh();
  const RuleScope scope("recomputation");
  at::Tensor count = at::zeros({1}, at::TensorOptions(at::kInt).device(device));
  if (wrong) count.fill_(1);
  for (int axis = 0; axis < mesh.axes(); ++axis) {
    if (mesh.axis(axis)->size() > 1) count = mesh.axis(axis)->all_reduce(count);
  }
  return count.item<int>() > 0;
}

}  // namespace

std::string end_segment(Segment& segment, const ModelContext& context, bool try_it) {
  std::vector<Original> saved;
  segment.for_each_slot([&](SavedSlot& slot, int number) {
    Original& original = saved.emplace_back(Original{&slot, slot.value, {}});
    if (number == kNone) return;
    original.op = segment.operators[number].op->name;
    original.of_statistics = segment.operators[number].makes_statistics && slot.value.dim() == 1;
  });
  std::string wrong = segment.no_replay;
  if (wrong.empty() && !segment.saved_between.empty()) {
    wrong = "it has an autograd::Function of the program's own";
  }
  if (wrong.empty()) {
    try {
      decide_needs(segment);
      segment.ended = true;
    } catch (const Error& error) {
      wrong = error.what();
    }
  }
  if (try_it) {
    if (wrong.empty() && !saved.empty()) wrong = try_to_run(segment, saved);
    const at::Device device = saved.empty() ? context.device() : saved.front().value.device();
    if (any_rank(!wrong.empty(), context, device) && wrong.empty()) {
      wrong = "another rank cannot run it again";
    }
  }
  for (const Original& original : saved) {
    if (!wrong.empty()) {
      original.slot->value = original.value;
      original.slot->kept = true;
    } else if (!original.slot->kept) {
      original.slot->value.reset();
    }
  }
  if (!wrong.empty()) {
    segment.operators.clear();
    segment.storages.clear();
    segment.outside.clear();
  }
  return wrong;
}

}  // namespace oslo::recompute
