#include "parallelizers/pipeline/run/schedule_run.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <deque>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/base/ledger.h"
#include "mpu/base/text.h"
#include "mpu/base/told_error.h"
#include "parallelizers/placement/carrier/access.h"

namespace oslo {
namespace {

using pipeline::Action;
using pipeline::Pass;

/// While it lives the context knows that gradients cross stages. A step that broke off is never
/// over: messages of it may be left, which the next step would take for its own.
class InStep {
 public:
  explicit InStep(const ModelContext& context) : context_(context) {
    OSLO_CHECK(context_.begin_step(),
               "a step of this model broke off, or called another one; messages between its stages "
               "may still be under way: go on in new processes, from a checkpoint");
  }
  void over() { over_ = true; }
  ~InStep() {
    if (over_ || context_.residence() == nullptr) context_.end_step();
  }
  InStep(const InStep&) = delete;
  InStep& operator=(const InStep&) = delete;

 private:
  const ModelContext& context_;
  bool over_ = false;
};

/// While a forward runs, on its thread. `crossings` may be null: there are no stages.
class ForwardScope {
 public:
  explicit ForwardScope(MicroBatch* crossings) : crossings_(crossings), carries_(crossings) {}
  ~ForwardScope() {
    if (crossings_ != nullptr) crossings_->end_forward();
  }
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

 private:
  MicroBatch* crossings_;
  StageCarrier::Scope carries_;
};

void check_trains(const at::Tensor& loss) {
  OSLO_CHECK(loss.requires_grad(),
             "the loss of a micro-batch requires no gradient; use forward_only, or let it depend "
             "on parameters that do");
}

const char* name_of(Pass pass) {
  switch (pass) {
    case Pass::forward:
      return "forward";
    case Pass::backward:
      return "backward";
    case Pass::backward_input:
      return "backward of the input";
    case Pass::backward_weight:
      return "backward of the weights";
  }
  return "";
}

}  // namespace

ScheduleRun::ScheduleRun(Models models, Work work, CallThreads& idle)
    : models_(std::move(models)),
      work_(std::move(work)),
      idle_(idle),
      under_way_(work_.weights.size()),
      ways_(work_.weights.size()) {
  if (!models_.generators.empty()) seed_ = ForwardRandom::draw_seed(models_.generators);
}

ScheduleRun::~ScheduleRun() {
  under_way_.clear();  // while everything is there that they may use on their way out
}

void ScheduleRun::run(const std::vector<Action>& actions, const World& world) {
  InStep in_step(*context_);
  std::deque<InStep> others;
  for (const ContextPtr& other : models_.others) others.emplace_back(*other);
  splits_ = std::any_of(actions.begin(), actions.end(),
                        [](const Action& action) { return action.pass == Pass::backward_input; });
  const auto attempt = [&](const Action& action, const std::function<void()>& part) {
    const auto place = [&] {
      return c10::str("pipeline stage ", action.stage, ", ", name_of(action.pass),
                      " of micro-batch ", action.micro_batch);
    };
    named(place, world, part);
  };
  for (const Action& action : actions) {
    attempt(action, [&] { act(action); });
  }
  for (const Action& action : actions) {  // forwards that no backward came for
    if (!under_way_[action.micro_batch].thread) continue;
    attempt(action, [&] { finish_forward(action.micro_batch); });
  }
  in_step.over();
  for (InStep& other : others) other.over();
}

void ScheduleRun::named(const std::function<std::string()>& place, const World& world,
                        const std::function<void()>& part) const {
  try {
    part();
  } catch (const std::exception& error) {
    const std::string own = c10::str(place(), " (rank ", world.rank(), "): ", message_of(error));
    // All ranks throw the kind of the first.
    const std::string told = ToldError{kind_of(error), own}.text();
    const ToldError first = ToldError::read(world.first_failure(work_.failures, told));
    if (context_->pipeline()) leave_groups();
    fail_as(first.kind, own,
            first.message == own ? "" : "; the first to fail was " + first.message);
  }
}

void ScheduleRun::check_ways() const {
  if (!context_->pipeline() || !context_->stage_ranks().several()) return;
  const RuleScope scope("pipeline schedule");
  const auto count = static_cast<int64_t>(ways_.size());
  const int ranks = context_->pipeline()->size();
  const at::Tensor all =
      context_->pipeline()->all_gather(at::tensor(ways_, at::kLong), 0, std::vector(ranks, count));
  const auto* ways = all.const_data_ptr<int64_t>();
  for (int rank = 1; rank < ranks; ++rank) {
    for (int64_t i = 0; i < count; ++i) {
      if (ways[rank * count + i] == ways[i]) continue;
      fail("the forward of micro-batch ", i, " used other parameters on rank ",
           context_->pipeline()->ranks()[rank], " than on rank ", context_->pipeline()->ranks()[0],
           ". Several micro-batches are under way where a rank has several stages, "
           "in another order on each: what decides which layers run (a std::mt19937 or a counter "
           "of the program's own) has to be asked at the top of the forward, which micro-batches "
           "begin in order, or be drawn from the default generator (torch::rand), of which each "
           "micro-batch has a stream of its own; or take a schedule with one stage a rank, such as "
           "1f1b");
    }
  }
}

/// Behind the note of what failed, which those who are woken by it look for.
void ScheduleRun::leave_groups() const {
  for (const std::shared_ptr<Group>& group : models_.groups) {
    try {
      if (group->process_group()) group->process_group()->abort();
    } catch (const std::exception&) {
      // It has failed already, or its transport cannot: its ranks wait until the time limit.
    }
  }
}

void ScheduleRun::act(const Action& action) {
  if (trains()) work_.gradients->begins(action);
  const pipeline::Recorder::During computes(work_.recorder, action);
  switch (action.pass) {
    case Pass::forward:
      peak_ = std::max(peak_, ++in_flight_);
      forward(action.stage, action.micro_batch);
      if (trains()) return;
      --in_flight_;
      if (is_last(action.stage) && !under_way_[action.micro_batch].thread) {
        under_way_[action.micro_batch] = {};
      }
      return;
    case Pass::backward:
      backward(action.stage, action.micro_batch);
      return backward_of_weights(action.stage, action.micro_batch);
    case Pass::backward_input:
      return backward(action.stage, action.micro_batch);
    case Pass::backward_weight:
      return backward_of_weights(action.stage, action.micro_batch);
  }
}

/// Of this rank's stages. One rank without stages does everything in the passes of the first.
bool ScheduleRun::is_first(int stage) const {
  return stage == (context_->pipeline() ? context_->stage_ranks().own().first() : 0);
}

bool ScheduleRun::is_last(int stage) const {
  return context_->pipeline() &&
         context_->stage_ranks().next_on_rank(context_->stage_ranks().rank(), stage) < 0;
}

void ScheduleRun::forward(int stage, int micro_batch) {
  const c10::AutoGradMode records(trains() && c10::GradMode::is_enabled());
  UnderWay& own = under_way_[micro_batch];
  ++own.held;
  if (is_first(stage) && !models_.generators.empty()) {
    own.random = std::make_unique<ForwardRandom>(models_.generators, seed_, micro_batch);
  }
  const ForwardRandom::Scope draws(own.random.get());
  if (!context_->pipeline()) {
    if (is_first(stage)) call_forward(micro_batch);
    return;
  }
  if (is_first(stage)) {
    own.crossings = std::make_unique<MicroBatch>(
        context_->pipeline(), context_->stage_ranks(), micro_batch,
        static_cast<int>(under_way_.size()),
        work_.needs.stands_at_reads || !context_->stage_ranks().several(), work_.recorder);
    if (splits_) own.crossings->split_backward();
    if (trains()) own.crossings->tell(&work_.gradients->strays());
  }
  if (context_->stage_ranks().several()) return call_in_parts(stage, micro_batch);
  call_forward(micro_batch);
}

/// The forward up to where it needs a later stage of this rank.
void ScheduleRun::call_in_parts(int stage, int micro_batch) {
  UnderWay& own = under_way_[micro_batch];
  if (is_first(stage)) {
    if (idle_.empty()) idle_.push_back(std::make_unique<CallThread>());
    own.thread = std::move(idle_.back());
    idle_.pop_back();
    own.crossings->keep_order(work_.needs.writes, uses_);
    own.crossings->pause_by([thread = own.thread.get()] { thread->pause(); });
    own.thread->start([this, micro_batch] { call_forward(micro_batch); });
  }
  if (!own.thread) return;  // it has returned in an earlier stage's
  own.crossings->open(stage);
  resume(micro_batch);
}

void ScheduleRun::resume(int micro_batch) {
  UnderWay& own = under_way_[micro_batch];
  own.thread->resume();
  if (!own.thread->busy()) idle_.push_back(std::move(own.thread));
}

/// A forward that looks at a value of a stage behind all of this rank's stops there until then.
void ScheduleRun::finish_forward(int micro_batch) {
  UnderWay& own = under_way_[micro_batch];
  if (!own.thread) return;
  const ForwardRandom::Scope draws(own.random.get());
  own.crossings->open_all();
  resume(micro_batch);
}

void ScheduleRun::call_forward(int micro_batch) {
  UnderWay& own = under_way_[micro_batch];
  {
    const ForwardScope scope(own.crossings.get());
    own.loss = checked_loss(work_.loss(micro_batch), micro_batch);
  }
  if (own.crossings) {
    sent_ += own.crossings->sent();
    ways_[micro_batch] = own.crossings->way();
  }
  if (own.loss.defined()) {
    const at::Tensor share = own.loss.detach();
    loss_ = loss_.defined() ? loss_ + share : share;
  }
  if (!trains()) own.loss = at::Tensor();
}

/// This rank's loss, weighted; undefined where another stage has it.
at::Tensor ScheduleRun::checked_loss(const at::Tensor& loss, int micro_batch) {
  OSLO_CHECK(loss.defined() && loss.numel() == 1, "the loss function gave ",
             loss.defined() ? c10::str("a tensor of shape ", loss.sizes()) : "no tensor",
             "; it returns one number, such as cross_entropy's mean");
  if (!context_->pipeline()) return local_tensor(loss) * work_.weights[micro_batch];
  const LayoutPtr layout = oslo::layout(loss);
  OSLO_CHECK(layout && layout->resident(),
             "the loss function gave a loss that does not depend on the model: no pipeline stage "
             "computed it; compute it from what the model's forward returns");
  const int stage = layout->stages().first();
  under_way_[micro_batch].loss_stage = stage;
  loss_stages_ = loss_stages_ | StageSet::of(stage);
  loss_options_ = at::TensorOptions(loss.dtype()).device(context_->device());
  if (!context_->holds(StageSet::of(stage))) return {};
  if (trains()) check_trains(local_tensor(loss));
  return local_tensor(loss) * work_.weights[micro_batch];
}

void ScheduleRun::backward(int stage, int micro_batch) {
  finish_forward(micro_batch);
  UnderWay& own = under_way_[micro_batch];
  if (own.crossings) {
    const at::Tensor loss = own.loss.defined() && stage == own.loss_stage
                                ? std::exchange(own.loss, at::Tensor())
                                : at::Tensor();
    return own.crossings->backward(stage, loss);
  }
  if (!is_first(stage)) return;
  const at::Tensor loss = std::exchange(own.loss, at::Tensor());
  check_trains(loss);
  loss.backward();
}

/// After it nothing of this stage and micro-batch is kept. One rank without stages has nothing
/// left: its backward was all of it.
void ScheduleRun::backward_of_weights(int stage, int micro_batch) {
  UnderWay& own = under_way_[micro_batch];
  --in_flight_;
  if (own.crossings && splits_) own.crossings->backward_of_weights(stage);
  if (--own.held == 0) own = {};
}

}  // namespace oslo
