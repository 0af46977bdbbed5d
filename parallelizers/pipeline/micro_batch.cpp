#include "parallelizers/pipeline/micro_batch.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include "mpu/error.h"
#include "parallelizers/pipeline/crossing.h"
#include "parallelizers/pipeline/read_message.h"
#include "parallelizers/pipeline/recorded_step.h"

namespace oslo {
namespace {

using During = pipeline::Recorder::During;
using Doing = pipeline::Timeline::Doing;

constexpr int kMostCrossings = 1000;

}  // namespace

MicroBatch::MicroBatch(std::shared_ptr<Group> stages, int number, pipeline::Recorder* recorder)
    : stages_(std::move(stages)), next_tag_(2 * kMostCrossings * number), recorder_(recorder) {}

at::Tensor MicroBatch::carry(const at::Tensor& tensor, const Value& value, int to) {
  const Mesh& mesh = *value.layout->mesh();
  const uint64_t version = writes_to(tensor, mesh);
  Carried& known = carried_[{tensor.unsafeGetTensorImpl(), to}];
  if (known.there.defined() && known.version == version) return known.there;
  // A value that several stages computed comes from the nearest.
  const int from = value.layout->stages().last_before(to);
  const int tag = new_tag();
  const at::Tensor& local = value.local;
  at::Tensor there = place_for(value, to);
  if (mesh.stage == from) {
    const During sends(recorder_, Doing::send);
    stages_->send({local.detach().contiguous()}, to, tag);
    const bool returns = local.requires_grad();
    sent_.push_back(
        {returns ? torch::autograd::impl::gradient_edge(local) : torch::autograd::Edge(),
         local.sizes().vec(), there.options().device(local.device()), to, tag});
  } else if (mesh.stage == to) {
    there = receive_recorded(*stages_, from, tag, {there}, recorder_).front();
    received_.push_back({there, from, tag});
  }
  there.set_requires_grad(local.requires_grad());
  known = {tensor, there, version};
  return there;
}

std::vector<c10::IValue> MicroBatch::share_read(StageSet owners, std::vector<c10::IValue> results) {
  const int tag = new_tag(), own = stages_->rank(), from = owners.first();
  if (own == from) {
    const During sends(recorder_, Doing::send);
    const std::vector<at::Tensor> message = message_of_read(results);
    for (int stage = 0; stage < stages_->size(); ++stage) {
      if (!owners.contains(stage)) stages_->send(message, stage, tag);
    }
  } else if (!owners.contains(own)) {
    results = read_of_message(receive_recorded(*stages_, from, tag, {}, recorder_));
  }
  return results;
}

int MicroBatch::new_tag() {
  const int tag = next_tag_;
  next_tag_ += 2;
  OSLO_CHECK(next_tag_ % (2 * kMostCrossings) != 0, "more than ", kMostCrossings - 1,
             " values cross between pipeline stages, or are read, in one micro-batch");
  return tag;
}

void MicroBatch::backward(const at::Tensor& loss) {
  torch::autograd::edge_list roots;
  torch::autograd::variable_list gradients;
  if (loss.defined() && loss.requires_grad()) {
    roots.push_back(torch::autograd::impl::gradient_edge(loss));
    gradients.push_back(at::ones_like(loss));
  }
  for (const Sent& sent : sent_) {
    if (!sent.edge.is_valid()) continue;
    const at::Tensor gradient =
        receive_recorded(*stages_, sent.to, sent.tag + 1, {}, recorder_).at(0);
    if (!gradient.defined()) continue;
    OSLO_CHECK(gradient.sizes() == sent.sizes && gradient.dtype() == sent.options.dtype(),
               "the gradient of a value of shape ", sent.sizes, ", ", sent.options.dtype(),
               ", that went to stage ", sent.to, " came back as ", gradient.sizes(), ", ",
               gradient.dtype(), "; every rank has to run the same forward on the same batch");
    roots.push_back(sent.edge);
    gradients.push_back(gradient);
  }
  if (!roots.empty()) {
    torch::autograd::Engine::get_default_engine().execute(roots, gradients, /*keep_graph=*/false,
                                                          /*create_graph=*/false,
                                                          /*accumulate_grad=*/true);
  }
  for (const Received& received : received_) {
    const at::Tensor& leaf = received.leaf;
    if (!leaf.requires_grad()) continue;
    // Undefined where the loss does not depend on it: what it was computed from has no gradient
    // then.
    const at::Tensor& gradient = leaf.grad();
    const During sends(recorder_, Doing::send);
    stages_->send({gradient.defined() ? gradient.contiguous() : gradient}, received.from,
                  received.tag + 1);
  }
  carried_.clear();
  sent_.clear();
  received_.clear();
}

}  // namespace oslo
