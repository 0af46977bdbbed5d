#include "parallelizers/pipeline/run/micro_batch.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <limits>

#include "mpu/base/digest.h"
#include "mpu/base/error.h"
#include "parallelizers/pipeline/crossing/crossing.h"
#include "parallelizers/pipeline/crossing/generator_state.h"
#include "parallelizers/pipeline/crossing/read_message.h"
#include "parallelizers/pipeline/run/recorded_step.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

using During = pipeline::Recorder::During;
using Doing = pipeline::Timeline::Doing;

torch::autograd::Edge edge_of(const at::Tensor& tensor) {
  return tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor)
                                : torch::autograd::Edge();
}

}  // namespace

MicroBatch::MicroBatch(std::shared_ptr<Group> stages, StageRanks ranks, int number, int of,
                       bool stands_at_reads, pipeline::Recorder* recorder)
    : stages_(std::move(stages)),
      ranks_(std::move(ranks)),
      order_(ranks_, stands_at_reads),
      number_(number),
      of_(of),
      opened_(StageSet::kMost),
      next_tag_(2 * number),
      recorder_(recorder) {}

void MicroBatch::pause_by(std::function<void()> pause) {
  pause_ = std::move(pause);
  opened_ = -1;
}

/// Where forwards stop in the middle, each has a thread of its own.
void MicroBatch::check_own(const at::Tensor& local, int to) const {
  if (!pause_ || !local.grad_fn()) return;
  OSLO_CHECK(local.grad_fn()->thread_id() == at::RecordFunction::currentThreadId(),
             "a value that pipeline stage ", to,
             " needs was computed by another micro-batch's forward; several are under way where a "
             "rank has several stages: keep what a forward computes in local variables, not in "
             "members of the model, or use a schedule with one stage a rank, such as 1f1b");
}

void MicroBatch::enter(StageSet stages) {
  const int stage = ranks_.home_of(stages);
  if (!splits_ || stage == entered_) return;
  entered_ = stage;
  auto& split = weights_[stage];
  if (!split) split = std::make_shared<SplitBackward>();
  scope_.reset();  // before the next one: each puts back what was before it
  scope_.emplace(split);
}

void MicroBatch::keep_order(const ForwardWrites& writes, UseOrder& uses) {
  writes_ = &writes;
  uses_ = &uses;
}

void MicroBatch::use(const at::Tensor& parameter, StageSet held, bool /*writes*/) {
  if (strays_ != nullptr) strays_->use(parameter);
  if (uses_ == nullptr) return;
  if (met_.insert(parameter.unsafeGetTensorImpl()).second) {
    way_ += digest_of(mark_of(parameter)->name);
  }
  const std::vector<int>* const places = writes_->places(parameter);
  for (size_t rank = 0; places != nullptr && rank < places->size(); ++rank) {
    order_.go_on(static_cast<int>(rank), (*places)[rank]);
  }
  if (places != nullptr && ranks_.holds(held)) wait_for(order_.standing(ranks_.rank()));
}

void MicroBatch::used(const at::Tensor& parameter, StageSet held, bool writes) {
  if (uses_ == nullptr || !ranks_.holds(held)) return;
  OSLO_CHECK(uses_->note(parameter, number_, writes), mark_of(parameter)->name, " on pipeline ",
             held.to_string(), " is ", writes ? "written" : "used",
             " by the forward of a micro-batch behind that of a later one; several are under way "
             "where a rank has several stages: use what the forward writes in one layer, or take a "
             "schedule with one stage a rank, such as 1f1b");
}

void MicroBatch::end_forward() {
  carried_.clear();
  scope_.reset();
}

void MicroBatch::backward_of_weights(int stage) {
  const auto found = weights_.find(stage);
  if (found == weights_.end()) return;  // the forward came to nothing there
  found->second->run();
  weights_.erase(found);
}

void MicroBatch::wait_for(int stage) {
  while (pause_ && stage > opened_) pause_();
}

at::Tensor MicroBatch::carry(const at::Tensor& tensor, const Value& value, int to) {
  const uint64_t version = writes_to(tensor, *value.layout->context());
  Carried& known = carried_[{tensor.unsafeGetTensorImpl(), to}];
  if (known.there.defined() && known.version == version) return known.there;
  check_own(value.local, to);
  const StageSet owners = value.layout->stages();
  const int from = ranks_.source_of(owners, to);
  const int sender = ranks_.rank_of(from), receiver = ranks_.rank_of(to);
  const ForwardOrder::Crossing crossing = order_.cross(from, to);
  if (receiver == ranks_.rank()) wait_for(crossing.received_in);
  if (sender == receiver && receiver == ranks_.rank()) {
    const at::Tensor there = linked(value);
    known = {tensor, there, version};
    return there;
  }
  const at::Tensor& local = value.local;
  at::Tensor there = place_for(value, to);
  const int tag = sender == receiver ? 0 : new_tag();
  if (sender == receiver) {
    // Nothing moves, and a shape is all that this rank has.
  } else if (sender == ranks_.rank()) {
    const During sends(recorder_, Doing::send);
    stages_->send(message_of(local), receiver, tag);
    ++messages_sent_;
    sent_.push_back({ranks_.home_of(owners), edge_of(local), at::Tensor(), local.sizes().vec(),
                     there.options().device(local.device()), receiver, tag});
  } else if (receiver == ranks_.rank()) {
    there = expected_of_message(receive_recorded(*stages_, sender, tag, {}, recorder_), there);
    ++messages_received_;
    received_.push_back({to, there, sender, tag});
  }
  there.set_requires_grad(local.requires_grad());
  known = {tensor, there, version};
  return there;
}

/// A leaf on the value's memory, dense as what comes in messages is.
at::Tensor MicroBatch::linked(const Value& value) {
  const at::Tensor& local = value.local;
  at::Tensor leaf = dense(local);
  leaf.set_requires_grad(local.requires_grad());
  if (local.requires_grad()) {
    const int stage = ranks_.home_of(value.layout->stages());
    sent_.push_back({stage, edge_of(local), leaf, {}, {}, ranks_.rank(), 0});
  }
  return leaf;
}

at::Tensor MicroBatch::hand_over(const at::Tensor& tensor, const Value& value, StageSet stages) {
  if (!value.local.requires_grad()) return {};
  const int to = ranks_.home_of(stages);
  const uint64_t version = writes_to(tensor, *value.layout->context());
  Carried& known = carried_[{tensor.unsafeGetTensorImpl(), to}];
  if (!known.there.defined() || known.version != version) known = {tensor, linked(value), version};
  return known.there;
}

std::vector<c10::IValue> MicroBatch::share_read(StageSet owners, std::vector<c10::IValue> results) {
  const int tag = new_tag(), own = ranks_.rank(), from = ranks_.rank_of(owners.first());
  order_.read(owners);
  if (own == from) {
    const During sends(recorder_, Doing::send);
    const std::vector<at::Tensor> message = message_of_read(results);
    for (int rank = 0; rank < ranks_.ranks(); ++rank) {
      if (!ranks_.on_rank(owners, rank)) stages_->send(message, rank, tag);
    }
  } else if (!ranks_.holds(owners)) {
    wait_for(order_.standing(own));
    results = read_of_message(receive_recorded(*stages_, from, tag, {}, recorder_));
  }
  return results;
}

void MicroBatch::share_generator(StageSet owners, const at::Generator& generator) {
  const int tag = new_tag(), own = ranks_.rank(), from = ranks_.rank_of(owners.first());
  order_.read(owners);
  if (own == from) {
    const During sends(recorder_, Doing::send);
    send_state(generator, *stages_, ranks_, owners, tag);
  } else if (!ranks_.holds(owners)) {
    wait_for(order_.standing(own));
    set_state(generator, receive_recorded(*stages_, from, tag, {}, recorder_).at(0));
  }
}

/// One for a value, the next for its gradient. Those of the others are in between.
int MicroBatch::new_tag() {
  const int tag = next_tag_;
  OSLO_CHECK(tag < std::numeric_limits<int>::max() - 2 * of_, "more than ", tag / (2 * of_),
             " values cross between pipeline stages, or are read, in one of ", of_,
             " micro-batches; take fewer");
  next_tag_ += 2 * of_;
  return tag;
}

void MicroBatch::backward(int stage, const at::Tensor& loss) {
  torch::autograd::edge_list roots;
  torch::autograd::variable_list gradients;
  if (loss.defined() && loss.requires_grad()) {
    roots.push_back(torch::autograd::impl::gradient_edge(loss));
    gradients.push_back(at::ones_like(loss));
  }
  for (const Sent& sent : sent_) {
    if (sent.stage != stage || !sent.edge.is_valid()) continue;
    const at::Tensor gradient = sent.leaf.defined()
                                    ? sent.leaf.grad()
                                    : value_of_message(receive_recorded(
                                          *stages_, sent.to_rank, sent.tag + 1, {}, recorder_));
    if (!gradient.defined()) continue;
    OSLO_CHECK(sent.leaf.defined() ||
                   (gradient.sizes() == sent.sizes && gradient.dtype() == sent.options.dtype()),
               "the gradient of a value of shape ", sent.sizes, ", ", sent.options.dtype(),
               ", that went to rank ", stages_->ranks()[sent.to_rank], " came back as ",
               gradient.sizes(), ", ", gradient.dtype(),
               "; every rank has to run the same forward on the same batch");
    roots.push_back(sent.edge);
    gradients.push_back(gradient);
  }
  std::erase_if(sent_, [&](const Sent& sent) { return sent.stage == stage; });
  if (!roots.empty()) {
    torch::autograd::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false,
                                                          /*create_graph=*/false,
                                                          /*accumulate_grad=*/true);
  }
  for (const Received& received : received_) {
    const at::Tensor& leaf = received.leaf;
    if (received.stage != stage || !leaf.requires_grad()) continue;
    // Undefined where the loss does not depend on it: what it was computed from has no gradient
    // then.
    const at::Tensor& gradient = leaf.grad();
    const During sends(recorder_, Doing::send);
    stages_->send(message_of(gradient), received.from_rank, received.tag + 1);
  }
  std::erase_if(received_, [&](const Received& received) { return received.stage == stage; });
}

}  // namespace oslo
