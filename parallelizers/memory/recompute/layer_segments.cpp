#include "parallelizers/memory/recompute/layer_segments.h"

#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

#include "parallelizers/libtorch/keys.h"
#include "parallelizers/memory/recompute/record/needs.h"
#include "parallelizers/memory/recompute/record/work.h"
#include "parallelizers/memory/recompute/recording_scopes.h"
#include "parallelizers/memory/recompute/try_segment.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {

/// The segment that a thread is in.
struct LayerSegments::Open {
  std::shared_ptr<LayerSegments> owner;
  int number;
  const c10::TensorImpl* first;  ///< the parameter that it began with
  RanksInStep ranks;
  std::unique_ptr<recompute::RecordingScopes> scopes;
};

std::unique_ptr<LayerSegments::Open>& LayerSegments::open() {
  static thread_local std::unique_ptr<Open> one;
  return one;
}

LayerSegments::LayerSegments(const std::vector<SegmentLayers>& segments, CheckpointOptions options,
                             std::shared_ptr<SegmentBudget> budget)
    : options_(std::move(options)), budget_(std::move(budget)), tried_(segments.size()) {
  for (size_t i = 0; i < segments.size(); ++i) {
    reports_.push_back({segments[i].name, false, {}});
    for (const at::Tensor& parameter : segments[i].parameters) {
      segment_of_.emplace(parameter.unsafeGetTensorImpl(), static_cast<int>(i));
    }
  }
}

std::vector<SegmentReport> LayerSegments::report() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<SegmentReport> reports = reports_;
  if (!budget_) return reports;
  const std::vector<bool> kept = budget_->decided().kept;
  for (size_t i = 0; i < reports.size(); ++i) reports[i].kept = kept[i];
  return reports;
}

void LayerSegments::about_to_use(const at::Tensor& parameter,
                                 c10::ArrayRef<c10::IValue> arguments) {
  if (budget_ && budget_->follows_inputs()) {
    for_each_tensor(arguments, [&](const at::Tensor& tensor) {
      const bool own = !tensor.key_set().has(kPlacedKey) && tensor.has_storage();
      if (own && !tensor.is_meta() && mark_of(tensor) == nullptr) budget_->met(tensor.storage());
    });
  }
  // Of what the program made of a parameter, a cast, nobody knows whose it was.
  if (!parameter.is_leaf()) return;
  const auto found = segment_of_.find(parameter.unsafeGetTensorImpl());
  const int number = found == segment_of_.end() ? -1 : found->second;
  const std::unique_ptr<Open>& in = open();
  if (in && in->owner.get() == this && in->number == number && in->first != found->first) return;
  end_open();
  // Within a function that the program checkpoints itself, and in backward, nothing begins.
  const bool forward = c10::GradMode::is_enabled() && OperatorTap::current() == nullptr &&
                       torch::autograd::get_current_graph_task_id() == -1;
  if (number >= 0 && forward) begin(number, parameter);
}

void LayerSegments::begin(int number, const at::Tensor& parameter) {
  const RanksInStep ranks{c10::IValue(parameter)};
  const bool keeps = budget_ && budget_->begin(number, ranks);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    reports_[number].used = true;
    if (keeps || !reports_[number].not_cut.empty()) return;
  }
  auto segment = std::make_shared<recompute::Segment>();
  segment->whole = options_.whole();
  segment->keep_at_most = options_.keep_at_most();
  segment->weighs = budget_ != nullptr;
  segment->state.emplace();
  open() = std::make_unique<Open>(
      Open{shared_from_this(), number, parameter.unsafeGetTensorImpl(), ranks,
           std::make_unique<recompute::RecordingScopes>(std::move(segment), options_.keep_if())});
  // The program's averages, or what a model beside this one moves.
  open()->scopes->recorder.end_before_collectives([] { end_open(); });
  before_next_backward([] { end_open(); });
}

void LayerSegments::end_open() {
  const std::unique_ptr<Open> ending = std::exchange(open(), nullptr);
  if (!ending) return;
  before_next_backward(nullptr);
  ending->owner->end(*ending);
}

void LayerSegments::end(Open& ending) {
  recompute::Recorder& recorder = ending.scopes->recorder;
  recompute::Segment& segment = *ending.scopes->segment;
  if (OperatorTap::current() != &recorder || !c10::impl::tls_is_dispatch_key_included(kPlacedKey)) {
    segment.no_replay = "the program set the thread's dispatch keys back in its midst";
  }
  const std::shared_ptr<recompute::Segment> kept = ending.scopes->segment;
  recorder.note_end();
  ending.scopes.reset();
  bool first = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    first = !tried_[ending.number];
    tried_[ending.number] = true;
  }
  if (budget_) {
    for (const c10::Storage& met : recompute::outside_memory(segment)) budget_->met(met);
    budget_->ended(ending.number, first);
  }
  const int64_t held = budget_ ? budget_->held() : 0;
  give_up(segment, ending);
  const std::string not_cut = recompute::end_segment(segment, ending.ranks, first);
  if (not_cut.empty()) {
    if (budget_) watch(segment, ending.number, held - budget_->held());
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  reports_[ending.number].not_cut = not_cut;
}

/// What was agreed on for as many operators of a kind to keep: the same for all of its forwards, on
/// all ranks.
void LayerSegments::give_up(recompute::Segment& segment, const Open& ending) {
  if (segment.keep_at_most >= 1) return;
  const auto of = std::make_pair(ending.number, recompute::asked_operators(segment));
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto known = given_up_.find(of);
    if (known != given_up_.end()) {
      segment.given_up = known->second;
      return;
    }
  }
  segment.given_up = recompute::agree_on_given_up(segment, ending.ranks);
  const std::lock_guard<std::mutex> lock(mutex_);
  given_up_[of] = segment.given_up;
}

void LayerSegments::watch(recompute::Segment& segment, int number, int64_t let_go) const {
  const size_t run = budget_->let_go(number, let_go, recompute::work_of(segment));
  segment.about_to_rerun = [budget = budget_, run] { budget->about_to_rerun(run); };
}

}  // namespace oslo
