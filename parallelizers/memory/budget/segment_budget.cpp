#include "parallelizers/memory/budget/segment_budget.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/base/ledger.h"

namespace oslo {
namespace {

/// The largest of each figure among the ranks that share the layers.
void agree(std::vector<int64_t>& figures, const RanksInStep& ranks, at::Device device) {
  const RuleScope scope("memory budget");
  const at::Tensor own = at::tensor(figures, at::kLong).to(device);
  const at::Tensor all = ranks.all_reduce(own, Reduction::max).cpu();
  std::copy_n(all.const_data_ptr<int64_t>(), figures.size(), figures.begin());
}

}  // namespace

int64_t usable(int64_t budget) {
  return budget - budget / 128;
}

std::string budget_too_small(int64_t budget, int64_t least, const std::string& at) {
  int64_t enough = least + least / 127;
  while (usable(enough) < least) ++enough;
  return c10::str("the budget of ", budget,
                  " bytes ('activation_checkpoint.memory') cannot be kept: the least is ", enough,
                  " bytes, since with everything computed again a rank holds ", least, " in ", at,
                  "; give it that much, use more tensor ranks, or smaller batches");
}

SegmentBudget::SegmentBudget(Options options) : options_(std::move(options)) {
  decided_.kept.resize(options_.names.size());
}

KeptSegments SegmentBudget::decided() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return decided_;
}

bool SegmentBudget::begin(int segment, const RanksInStep& ranks) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stage_ == Stage::done) return decided_.kept[segment];
  MemoryAccount::join(options_.account);
  // A forward runs its segments in their order, and to look at all parameters takes time.
  if (!began_ || segment <= last_segment_) begin_forward(ranks);
  last_segment_ = segment;
  next_phase("forward of " + options_.names[segment]);
  return decided_.kept[segment];
}

void SegmentBudget::begin_forward(const RanksInStep& ranks) {
  const LoopState now = options_.model();
  const bool sees_all = ranks.alone() && now.contents != 0;
  const bool changed =
      now.writes != at_begin_.writes || (sees_all && now.contents != at_begin_.contents);
  // A step in which everything is kept shows no backward pass.
  const bool written = changed && (saw_backward_ || stage_ == Stage::checks);
  const bool cleared = saw_backward_ && !now.gradients && !sees_all;
  const bool stepped = began_ && !in_backward_ && (written || cleared);
  if (stepped) {
    next_phase("");
    if (stage_ == Stage::profiles) {
      decide(ranks);
    } else {
      check(ranks);
    }
  }
  if (began_ && !stepped) return;
  began_ = true;
  saw_backward_ = false;
  seen_.clear();
  options_.account->take_peak();
  at_begin_ = now;
  held_at_begin_ = held();
}

void SegmentBudget::ended(int segment, bool tries) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stage_ != Stage::done) next_phase("trying " + options_.names[segment], tries);
}

void SegmentBudget::met(const c10::Storage& input) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto* const impl = input.unsafeGetStorageImpl();
  if (stage_ != Stage::profiles || at_begin_.memory.contains(impl) ||
      options_.account->counts(input)) {
    return;
  }
  inputs_.emplace(impl, static_cast<int64_t>(input.nbytes()));
}

size_t SegmentBudget::let_go(int segment, int64_t bytes, double work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stage_ != Stage::profiles) return SegmentRun::kNot;
  next_phase("after " + options_.names[segment]);
  SegmentRun run;
  run.segment = segment;
  run.let_go = std::max<int64_t>(0, bytes);
  run.work = work;
  run.ended = seen_.size() - 1;
  profile_.runs.push_back(run);
  return profile_.runs.size() - 1;
}

void SegmentBudget::about_to_rerun(size_t number) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (stage_ == Stage::done) return;
  saw_backward_ = true;
  if (!in_backward_) {
    in_backward_ = true;
    torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
      if (const auto budget = weak.lock()) budget->backward_ended();
    });
  }
  if (stage_ != Stage::profiles || number >= profile_.runs.size()) return;
  SegmentRun& run = profile_.runs[number];
  next_phase("backward of " + options_.names[run.segment]);
  run.reran = seen_.size() - 1;  // the last time, where a graph is retained
}

void SegmentBudget::backward_ended() {
  const std::lock_guard<std::mutex> lock(mutex_);
  in_backward_ = false;
  if (stage_ != Stage::done) next_phase("the optimizer's step");
}

/// Ends the phase that goes on. Where nothing is profiled only the peak counts.
void SegmentBudget::next_phase(std::string name, bool once) {
  int64_t most = options_.account->take_peak() + at_begin_.uncounted;
  for (const auto& [impl, bytes] : inputs_) most += bytes;
  if (!seen_.empty()) seen_.back().most = std::max(seen_.back().most, most);
  if (stage_ == Stage::profiles || seen_.empty()) seen_.push_back({std::move(name), 0, once});
}

int64_t SegmentBudget::peak() const {
  int64_t most = 0;
  for (const StepPhase& phase : seen_) most = std::max(most, phase.most);
  return most;
}

void SegmentBudget::decide(const RanksInStep& ranks) {
  if (!seen_.empty() && seen_.back().name.empty()) seen_.pop_back();
  // What stays from now on, an optimizer's states, was not there before its first step.
  std::vector<int64_t> figures = {held() - held_at_begin_};
  for (const StepPhase& phase : seen_) figures.push_back(phase.most);
  for (const SegmentRun& run : profile_.runs) figures.push_back(run.let_go);
  agree(figures, ranks, options_.device);
  size_t next = 1;
  for (StepPhase& phase : seen_) {
    const bool stays = next == seen_.size() || phase.once;
    phase.most = figures[next++] + (stays ? 0 : std::max<int64_t>(0, figures[0]));
  }
  for (SegmentRun& run : profile_.runs) run.let_go = figures[next++];
  profile_.phases = std::move(seen_);
  seen_.clear();
  stage_ = Stage::checks;
  follows_inputs_ = false;
  decided_ = choose_kept(profile_, options_.names.size(), usable(options_.bytes));
  if (decided_.peak > usable(options_.bytes)) refuse(decided_.peak, decided_.at);
}

void SegmentBudget::check(const RanksInStep& ranks) {
  std::vector<int64_t> figures = {peak()};
  agree(figures, ranks, options_.device);
  if (figures[0] <= options_.bytes) {
    stage_ = Stage::done;
    return;
  }
  const std::vector<bool>& kept = decided_.kept;
  if (std::find(kept.begin(), kept.end(), true) == kept.end()) refuse(figures[0], "a step");
  wrong_by_ += std::max<int64_t>(1, figures[0] - decided_.peak);
  decided_ = choose_kept(profile_, options_.names.size(), usable(options_.bytes) - wrong_by_);
  decided_.peak += wrong_by_;
}

void SegmentBudget::refuse(int64_t least, const std::string& at) const {
  fail(budget_too_small(options_.bytes, least, at));
}

}  // namespace oslo
