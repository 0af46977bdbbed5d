#include "parallelizers/data/counted_gradients.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <memory>

#include "mpu/base/error.h"
#include "mpu/grid/group_copies.h"
#include "parallelizers/data/gradient_elements.h"
#include "parallelizers/data/zero/gradient_share.h"
#include "parallelizers/libtorch/graph_pass.h"
#include "parallelizers/libtorch/keys.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {
namespace {

constexpr const char* kGiveStepCounts =
    "; give each the count of its step: counted_mean(loss_sum, count, ddp, step_count)";

/// Those of which each has a part of the parameter's gradient; null: there are none.
std::shared_ptr<Group> replicas_with_parts(const at::Tensor& parameter) {
  if (has_part(parameter)) return gradient_share(parameter)->replicas;
  if (!is_sharded(parameter)) return nullptr;
  const ModelContext& context = *mark_of(parameter)->layout->context();
  return context.mesh().axis(context.replica_axis);
}

}  // namespace

bool CountedGradients::undefined() const {
  return std::none_of(parameters_.begin(), parameters_.end(),
                      [](const at::Tensor& parameter) { return parameter.grad().defined(); });
}

/// Zeros that nobody wrote since the last pass are its result: of a rank that had nothing to count.
bool CountedGradients::empty() const {
  if (undefined()) return true;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    if (!gradient.defined()) continue;
    const bool same = gradient.unsafeGetTensorImpl() == noted_[i].gradient;
    if (same && gradient._version() == noted_[i].version) return false;
  }
  bool any = false;
  std::shared_ptr<Group> replicas;
  for (const at::Tensor& parameter : parameters_) {
    if (!parameter.grad().defined()) continue;
    any = any || gradient_elements(parameter).any().item<bool>();
    if (const auto among = replicas_with_parts(parameter)) replicas = among;
  }
  if (!replicas) return !any;
  // Of parts that one replica has the others know nothing.
  const RuleScope scope("counted mean");
  at::Tensor all = at::full({1}, any ? 1.0 : 0.0, at::kDouble);
  all = replicas->all_reduce(all, Reduction::max);
  if (const auto copies = copies_of(*replicas)) all = copies->all_reduce(all, Reduction::max);
  return all.item<double>() == 0;
}

/// A pass or a step.
void CountedGradients::begin() {
  first_ = empty();
  if (first_) {
    form_ = Form::none;
    total_ = 0;
  }
  mixed_ = !first_ && (mixed_ || form_ == Form::none);
}

void CountedGradients::multiply(double factor) {
  for (const at::Tensor& parameter : parameters_) {
    if (parameter.grad().defined()) gradient_elements(parameter).mul_(factor);
  }
}

void CountedGradients::note() {
  const BelowDoor below;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    noted_[i] = {};
    if (gradient.defined()) noted_[i] = {gradient.unsafeGetTensorImpl(), gradient._version()};
  }
}

void CountedGradients::note_at_end_of_pass() {
  at_end_of_pass(EndOfPass::last, [own = shared_from_this()] { own->note(); });
}

void CountedGradients::check_goes_together(const std::string& others) const {
  OSLO_CHECK(
      !mixed_ && form_ != Form::whole,
      "counted_mean: gradients of other losses, or of several counts, are there already, and "
      "would be divided by this one's",
      kGiveStepCounts);
  OSLO_CHECK(others.empty(), "counted_mean: gradients add up, and the loss also gives one to ",
             others, ", which would not be divided by all counts", kGiveStepCounts);
}

double CountedGradients::pass_begins(double count, bool exchanges, const std::string& others) {
  if (pass_hands_gradients_out()) return share(count);
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  const int pass = torch::autograd::get_current_graph_task_id();
  if (pass == pass_) {
    if (count == pass_count_) return pass_factor_;
    OSLO_CHECK(exchanges && first_, "counted_mean: sums over other numbers of elements, ", count,
               " in all, in one backward pass, and gradients accumulate", kGiveStepCounts);
    mixed_ = true;
    return share(count);
  }
  begin();
  if (form_ != Form::none || !exchanges) check_goes_together(others);
  if (!exchanges) {
    become_sums();
  } else if (form_ != Form::none && total_ + count > 0) {
    multiply((form_ == Form::mean ? total_ : replicas_) / (total_ + count));
  }
  total_ += count;
  form_ = exchanges ? Form::mean : Form::sums;
  pass_ = pass;
  pass_count_ = count;
  pass_factor_ = exchanges ? share(total_) : 1;
  note_at_end_of_pass();
  return pass_factor_;
}

double CountedGradients::whole_step_begins(double step_count) {
  if (pass_hands_gradients_out()) return share(step_count);
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  const int pass = torch::autograd::get_current_graph_task_id();
  const bool first_head = pass != pass_;
  if (first_head) begin();
  const bool at_once = !first_head && first_ && form_ == Form::mean;
  OSLO_CHECK(at_once || form_ == Form::none || form_ == Form::whole,
             "counted_mean: gradients of sums without the count of their step are there already",
             kGiveStepCounts);
  if (at_once) mixed_ = true;
  if (form_ == Form::none) form_ = Form::whole;
  if (first_head) note_at_end_of_pass();
  pass_ = pass;
  if (first_head) pass_count_ = -1;
  return share(step_count);
}

void CountedGradients::become_sums() {
  if (form_ == Form::mean) multiply(total_ / replicas_);
  form_ = Form::sums;
}

/// Whether the step counts is not known yet; the mean of earlier ones stays what it is until then.
void CountedGradients::step_begins() {
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  begin();
  if (form_ == Form::mean) become_sums();
}

void CountedGradients::step_ends(double count) {
  const BelowDoor below;
  const c10::AutoGradMode no_grad(false);
  check_goes_together();
  total_ += count;
  if (total_ > 0) multiply(replicas_ / total_);
  form_ = Form::mean;
  note();
}

void CountedGradients::step_ends_uncounted(bool whole) {
  OSLO_CHECK(form_ != Form::sums,
             "a step without counted_mean adds gradients to those of steps with it, which are "
             "divided by their counts",
             kGiveStepCounts);
  if (whole) form_ = Form::whole;
  note();
}

}  // namespace oslo
