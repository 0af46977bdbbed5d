#include "parallelizers/memory/recompute/record/needs.h"

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>

#include "mpu/base/error.h"
#include "parallelizers/memory/recompute/record/given_up.h"
#include "parallelizers/memory/recompute/record/segment_bytes.h"

namespace oslo::recompute {
namespace {

/// One attempt; what cannot be kept after all is found on the way, and ends it.
class Needs {
 public:
  explicit Needs(const Segment& segment, std::vector<bool>& may_keep)
      : segment_(segment),
        may_keep_(may_keep),
        needed_(segment.operators.size()),
        kept_(segment.storages.size()) {}

  /// False where something turned out not to be kept: `may_keep` says so now.
  bool decide() {
    for (size_t i = 0; i < segment_.operators.size(); ++i) {
      if (runs_anyway(segment_.operators[i])) need(i);
    }
    segment_.for_each_slot([this](SavedSlot& slot, int number) {
      if (slot.storage != kNone) return want(slot.storage, std::nullopt);
      if (number != kNone && !cannot_run(segment_.operators[number])) need(number);
    });
    for (size_t i = 0; i < segment_.operators.size(); ++i) {
      if (!needed_[i]) continue;
      for (const int written : segment_.operators[i].written) {
        if (kept_[written]) do_not_keep(written);
      }
    }
    return good_;
  }

  std::vector<bool> needed() const { return needed_; }
  const std::vector<bool>& kept() const { return kept_; }

  /// What it computes is kept, or is not the segment's to compute.
  bool cannot_run(const OperatorRecord& record) const {
    if (record.only_reads()) return true;
    const auto outside = [&](int storage) { return segment_.storages[storage].outside; };
    if (!record.written.empty() &&
        std::all_of(record.written.begin(), record.written.end(), outside)) {
      return true;
    }
    return record.to_keep && record.rebuildable &&
           std::all_of(record.results.begin(), record.results.end(), [&](const MetTensor& result) {
             return !result.defined || (result.storage != kNone && may_keep_[result.storage]);
           });
  }

 private:
  bool runs_anyway(const OperatorRecord& record) const {
    if (cannot_run(record)) return false;
    if (segment_.whole || record.placed || record.always || !record.rebuildable) return true;
    // A view of what was there before.
    return !record.results.empty() &&
           std::all_of(record.results.begin(), record.results.end(), [&](const MetTensor& result) {
             return result.defined && result.storage != kNone &&
                    segment_.storages[result.storage].outside;
           });
  }

  void need(size_t number) {
    if (needed_[number]) return;
    const OperatorRecord& record = segment_.operators[number];
    if (cannot_run(record)) return;
    needed_[number] = true;
    for (const int written : record.written) {
      OSLO_CHECK(!segment_.storages[written].outside, "checkpoint: ", record.op->name,
                 " writes a "
                 "tensor that was there before the function together with one of the function's, "
                 "so that it cannot be run again; write them one by one");
    }
    const bool shapes_only = record.always && !segment_.whole && record.written.empty();
    for (const MetTensor& argument : record.arguments) {
      if (argument.storage != kNone && !shapes_only) want(argument.storage, argument.writes);
    }
  }

  void want(int number, std::optional<uint32_t> writes) {
    const MetStorage& storage = segment_.storages[number];
    const bool written_since = writes && *writes != storage.writes;
    if (storage.outside) {
      OSLO_CHECK(!written_since,
                 "checkpoint: the function writes one of its inputs, or another tensor that was "
                 "there before, in place after it has computed with it, so that it cannot be run "
                 "again; let it write to a copy (clone())");
      return;
    }
    if (may_keep_[number]) {
      if (written_since) return do_not_keep(number);
      kept_[number] = true;
      return;
    }
    for (const int maker : storage.makers) need(maker);
  }

  void do_not_keep(int storage) {
    may_keep_[storage] = false;
    good_ = false;
  }

  const Segment& segment_;
  std::vector<bool>& may_keep_;
  std::vector<bool> needed_, kept_;
  bool good_ = true;
};

/// Gives up some of what is kept where that is more than was asked for; false where it is not.
class Share {
 public:
  explicit Share(const Segment& segment)
      : segment_(segment), bytes_(segment), allowed_(segment.keep_at_most * bytes_.saved()) {}

  bool give_up(const Needs& needs, std::vector<bool>& may_keep,
               std::vector<bool>& operators) const {
    const double left = bytes_.left(
        needs.kept(), [&](int number) { return needs.cannot_run(segment_.operators[number]); });
    // What one operator computed stays or goes together.
    std::vector<std::vector<int>> storages;
    std::vector<Weighed> things;
    std::unordered_map<int, size_t> thing_of;  // an operator
    for (int i = 0; i < static_cast<int>(segment_.storages.size()); ++i) {
      const MetStorage& storage = segment_.storages[i];
      if (!needs.kept()[i] || !storage.asked) continue;
      const auto [found, is_new] = thing_of.emplace(storage.makers.front(), things.size());
      if (is_new) {
        storages.emplace_back();
        things.emplace_back();
        for (const int maker : storage.makers)
          things.back().cost += segment_.operators[maker].flops;
      }
      storages[found->second].push_back(i);
      things[found->second].bytes += bytes_.of(i);
    }
    const std::vector<int> given_up = least_to_give_up(things, left - allowed_);
    for (const int each : given_up) {
      for (const int storage : storages[each]) {
        may_keep[storage] = false;
        for (const int maker : segment_.storages[storage].makers) operators[maker] = true;
      }
    }
    return !given_up.empty();
  }

 private:
  const Segment& segment_;
  const SegmentBytes bytes_;
  const double allowed_;
};

}  // namespace

namespace {

/// `Segment::given_up` by number.
std::vector<bool> operators_given_up(const Segment& segment) {
  std::vector<bool> operators(segment.operators.size());
  size_t next = 0;
  for (size_t i = 0; i < operators.size(); ++i) {
    if (!segment.operators[i].asked) continue;
    operators[i] = next < segment.given_up.size() && segment.given_up[next];
    ++next;
  }
  return operators;
}

std::vector<bool> may_be_kept(const Segment& segment) {
  const std::vector<bool> operators = operators_given_up(segment);
  std::vector<bool> may_keep;
  for (const MetStorage& storage : segment.storages) {
    const bool given_up = storage.asked && std::any_of(storage.makers.begin(), storage.makers.end(),
                                                       [&](int maker) { return operators[maker]; });
    const bool constant = storage.constant && storage.writes == 0;
    may_keep.push_back((storage.may_keep && !given_up) || constant);
  }
  return may_keep;
}

}  // namespace

size_t asked_operators(const Segment& segment) {
  return static_cast<size_t>(
      std::count_if(segment.operators.begin(), segment.operators.end(),
                    [](const OperatorRecord& record) { return record.asked; }));
}

std::vector<bool> find_given_up(const Segment& segment) {
  std::vector<bool> operators(segment.operators.size());
  std::vector<bool> may_keep = may_be_kept(segment);
  const Share share(segment);
  while (true) {
    Needs needs(segment, may_keep);
    if (!needs.decide()) continue;
    if (!share.give_up(needs, may_keep, operators)) break;
  }
  std::vector<bool> of_asked;
  for (size_t i = 0; i < operators.size(); ++i) {
    if (segment.operators[i].asked) of_asked.push_back(operators[i]);
  }
  return of_asked;
}

void decide_needs(Segment& segment) {
  if (segment.given_up.empty() && segment.keep_at_most < 1) {
    segment.given_up = find_given_up(segment);
  }
  std::vector<bool> may_keep = may_be_kept(segment);
  while (true) {
    Needs needs(segment, may_keep);
    if (!needs.decide()) continue;
    segment.needed = needs.needed();
    for (size_t i = 0; i < segment.storages.size(); ++i) {
      MetStorage& storage = segment.storages[i];
      storage.kept = needs.kept()[i];
      if (!storage.kept) storage.content = {};
    }
    segment.for_each_slot([&](SavedSlot& slot, int number) {
      if (slot.storage != kNone) {
        const MetStorage& storage = segment.storages[slot.storage];
        slot.kept = storage.outside || storage.kept;
      } else {
        slot.kept = number != kNone && needs.cannot_run(segment.operators[number]);
      }
      if (!slot.kept) slot.value.reset();
    });
    for (OperatorRecord& record : segment.operators) {
      if (needs.cannot_run(record)) record.random.clear();
      for (MetTensor& result : record.results) {
        if (result.storage != kNone && !may_keep[result.storage]) result.kept.reset();
      }
    }
    for (size_t i = 0; i < segment.storages.size(); ++i) segment.storages[i].may_keep = may_keep[i];
    return;
  }
}

std::vector<bool> all_needed(const Segment& segment) {
  std::vector<bool> may_keep;
  for (const MetStorage& storage : segment.storages) may_keep.push_back(storage.kept);
  const Needs needs(segment, may_keep);
  std::vector<bool> needed;
  for (const OperatorRecord& record : segment.operators)
    needed.push_back(!needs.cannot_run(record));
  return needed;
}

}  // namespace oslo::recompute
