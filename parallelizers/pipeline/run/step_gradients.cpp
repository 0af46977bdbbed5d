#include "parallelizers/pipeline/run/step_gradients.h"

#include <algorithm>
#include <utility>

#include "parallelizers/data/sharded/shard_parameters.h"
#include "parallelizers/placement/carrier/access.h"

namespace oslo {
namespace {

StrayGradients::Parameters known(const std::vector<at::Tensor>& parameters) {
  StrayGradients::Parameters known;
  for (const at::Tensor& parameter : parameters) known.insert(parameter.unsafeGetTensorImpl());
  return known;
}

/// The last action of a rank in which parameters get gradients. Without stages the first one's
/// backward is all of it.
std::optional<pipeline::Action> last_gradients(const std::vector<pipeline::Action>& list,
                                               bool staged) {
  const auto last = std::find_if(list.rbegin(), list.rend(), [&](const pipeline::Action& action) {
    const bool whole = action.pass == pipeline::Pass::backward;
    if (staged) return whole || action.pass == pipeline::Pass::backward_weight;
    return action.stage == 0 && (whole || action.pass == pipeline::Pass::backward_input);
  });
  return last == list.rend() ? std::nullopt : std::optional(*last);
}

}  // namespace

StepGradients::StepGradients(ContextPtr context, Group& replicas,
                             const std::vector<at::Tensor>& parameters,
                             const std::vector<pipeline::Action>& list)
    : context_(std::move(context)),
      replicas_(replicas),
      own_(known(parameters)),
      copied_(context_, parameters),
      exchange_(replicas, parameters),
      strays_(own_, context_->stage_ranks(), averages()),
      last_(last_gradients(list, context_->pipeline() != nullptr)) {
  for (const auto& shards : buckets_of(parameters)) shards_.emplace_back(shards);
}

/// The gradients of parameters on this rank's other stages have come in earlier passes.
void StepGradients::begins(const pipeline::Action& action) {
  if (!last_ || action != *last_) return;
  const bool staged = context_->pipeline() != nullptr;
  exchange_.last_pass_begins([&](const at::Tensor& parameter) {
    const LayoutPtr layout = oslo::layout(parameter);
    return !staged || !layout || !layout->resident() || layout->stages().contains(action.stage);
  });
}

/// Averages first: what copies add up then is the same on all of them, bit for bit.
void StepGradients::finish(pipeline::Recorder* recorder) {
  using Doing = pipeline::Timeline::Doing;
  if (context_->pipeline()) strays_.check(*context_->pipeline());
  if (averages()) {
    const pipeline::Recorder::During reduces(recorder, Doing::reduce);
    exchange_.finish();
    for (ShardStep& shards : shards_) shards.finish();
  }
  if (copied_.empty()) return;
  const pipeline::Recorder::During reduces(recorder, Doing::reduce);
  copied_.add_up();
}

}  // namespace oslo
