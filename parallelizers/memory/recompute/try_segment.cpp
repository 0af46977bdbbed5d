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

/// Whether any rank says so, of each.
std::vector<bool> any_rank(const std::vector<bool>& said, const RanksInStep& ranks,
                           at::Device device) {
  const RuleScope scope("recomputation");
  at::Tensor count = at::empty({static_cast<int64_t>(said.size())}, at::kInt);
  for (size_t i = 0; i < said.size(); ++i) count.data_ptr<int>()[i] = said[i] ? 1 : 0;
  count = ranks.all_reduce(count.to(device)).cpu();
  std::vector<bool> any(said.size());
  for (size_t i = 0; i < any.size(); ++i) any[i] = count.data_ptr<int>()[i] > 0;
  return any;
}

/// Of what it saved.
at::Device device_of(const Segment& segment, at::Device otherwise) {
  at::Device device = otherwise;
  segment.for_each_slot([&](const SavedSlot& slot, int) {
    if (slot.value.defined()) device = slot.value.device();
  });
  return device;
}

}  // namespace

std::vector<bool> agree_on_given_up(const Segment& segment, const RanksInStep& ranks) {
  std::vector<bool> given_up(asked_operators(segment));
  if (segment.keep_at_most >= 1 || given_up.empty()) return given_up;
  try {
    given_up = find_given_up(segment);
  } catch (const Error&) {
    // What writes its inputs is not computed again, which `end_segment` says.
  }
  return any_rank(given_up, ranks, device_of(segment, ranks.device()));
}

std::string end_segment(Segment& segment, const RanksInStep& ranks, bool try_it) {
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
    const at::Device device = saved.empty() ? ranks.device() : saved.front().value.device();
    if (any_rank({!wrong.empty()}, ranks, device)[0] && wrong.empty()) {
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
