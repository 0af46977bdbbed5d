#include "parallelizers/pipeline/schedule_run.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "mpu/error.h"
#include "mpu/text.h"
#include "parallelizers/placement/carrier/access.h"

namespace oslo {
namespace {

using pipeline::Action;
using pipeline::Pass;

/// While it lives the mesh knows that gradients cross stages. A step that broke off is never over:
/// messages of it may be left, which the next step would take for its own.
class InStep {
 public:
  explicit InStep(const Mesh& mesh) : mesh_(mesh) {
    OSLO_CHECK(!mesh_.in_step.exchange(true),
               "a step of this model broke off, or called another one; messages between its stages "
               "may still be under way: go on in new processes, from a checkpoint");
  }
  void over() { over_ = true; }
  ~InStep() {
    if (over_ || !mesh_.stages) mesh_.in_step = false;
  }
  InStep(const InStep&) = delete;
  InStep& operator=(const InStep&) = delete;

 private:
  const Mesh& mesh_;
  bool over_ = false;
};

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

ScheduleRun::ScheduleRun(MeshPtr mesh, Work work)
    : mesh_(std::move(mesh)), work_(std::move(work)), under_way_(work_.weights.size()) {}

void ScheduleRun::run(const std::vector<Action>& actions, const World& world) {
  InStep in_step(*mesh_);
  for (const Action& action : actions) {
    const auto place = [&] {
      return c10::str("pipeline stage ", action.stage, ", ", name_of(action.pass),
                      " of micro-batch ", action.micro_batch);
    };
    named(place, world, [&] { act(action); });
  }
  in_step.over();
}

void ScheduleRun::named(const std::function<std::string()>& place, const World& world,
                        const std::function<void()>& part) const {
  try {
    part();
  } catch (const std::exception& error) {
    const std::string own = c10::str(place(), " (rank ", world.rank(), "): ", message_of(error));
    const std::string first = world.first_failure("pipeline/" + work_.step, own);
    fail(own, first == own ? "" : "; the first to fail was " + first);
  }
}

void ScheduleRun::act(const Action& action) {
  const pipeline::Recorder::During computes(work_.recorder, action);
  switch (action.pass) {
    case Pass::forward:
      return forward(action.micro_batch);
    case Pass::backward:
      return backward(action.micro_batch);
    case Pass::backward_input:
    case Pass::backward_weight:
      fail("a backward pass in two halves is not there yet; use the schedule 1f1b");
  }
}

void ScheduleRun::forward(int micro_batch) {
  const c10::AutoGradMode records(!work_.forward_only && c10::GradMode::is_enabled());
  UnderWay& own = under_way_[micro_batch];
  peak_ = std::max(peak_, ++in_flight_);
  at::Tensor loss;
  if (mesh_->stages) {
    own.crossings = std::make_unique<MicroBatch>(mesh_->stages, micro_batch, work_.recorder);
    const StageCarrier::Scope scope(own.crossings.get());
    loss = work_.loss(micro_batch);
    sent_ += own.crossings->sent();
  } else {
    loss = work_.loss(micro_batch);
  }
  own.loss = checked_loss(loss, micro_batch);
  if (own.loss.defined()) {
    const at::Tensor share = own.loss.detach();
    loss_ = loss_.defined() ? loss_ + share : share;
  }
  if (!work_.forward_only) return;
  own = {};
  --in_flight_;
}

/// This rank's loss, weighted; undefined where another stage has it.
at::Tensor ScheduleRun::checked_loss(const at::Tensor& loss, int micro_batch) {
  OSLO_CHECK(loss.defined() && loss.numel() == 1, "the loss function gave ",
             loss.defined() ? c10::str("a tensor of shape ", loss.sizes()) : "no tensor",
             "; it returns one number, such as cross_entropy's mean");
  if (!mesh_->stages) return local_tensor(loss) * work_.weights[micro_batch];
  const LayoutPtr layout = oslo::layout(loss);
  OSLO_CHECK(layout && layout->resident(),
             "the loss function gave a loss that does not depend on the model: no pipeline stage "
             "computed it; compute it from what the model's forward returns");
  const int stage = layout->stages().first();
  loss_stages_ = loss_stages_ | StageSet::of(stage);
  loss_options_ = at::TensorOptions(loss.dtype()).device(mesh_->device);
  if (mesh_->stage != stage) return {};
  return local_tensor(loss) * work_.weights[micro_batch];
}

void ScheduleRun::backward(int micro_batch) {
  UnderWay own = std::exchange(under_way_[micro_batch], {});
  --in_flight_;
  if (own.crossings) return own.crossings->backward(own.loss);
  OSLO_CHECK(own.loss.requires_grad(),
             "the loss of a micro-batch requires no gradient; use forward_only, or let it depend "
             "on parameters that do");
  own.loss.backward();
}

}  // namespace oslo
