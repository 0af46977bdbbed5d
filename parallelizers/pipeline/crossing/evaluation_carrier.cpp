#include "parallelizers/pipeline/crossing/evaluation_carrier.h"

#include <ATen/ATen.h>

#include <limits>

#include "parallelizers/pipeline/crossing/crossing.h"
#include "parallelizers/pipeline/crossing/generator_state.h"

namespace oslo {
namespace {

/// No micro-batch has it. One is enough: every rank meets the same values in the same order.
constexpr int kEvaluationTag = std::numeric_limits<int>::max() - 1;

}  // namespace

at::Tensor EvaluationCarrier::carry(const at::Tensor& tensor, const Value& value, int to) {
  const uint64_t version = writes_to(tensor, *value.layout->context());
  const std::pair<const c10::TensorImpl*, int> key(tensor.unsafeGetTensorImpl(), to);
  const auto known = carried_.find(key);
  if (known != carried_.end() && known->second.version == version) return known->second.there;
  std::erase_if(carried_, [](const auto& entry) { return entry.second.tensor.expired(); });
  const int from = ranks_.rank_of(ranks_.source_of(value.layout->stages(), to));
  const int receiver = ranks_.rank_of(to);
  at::Tensor there;
  if (from == receiver && ranks_.rank() == from) {
    there = dense(value.local);
  } else {
    there = place_for(value, to);
    if (ranks_.rank() == from && from != receiver) {
      stages_->send(message_of(value.local), receiver, kEvaluationTag);
    } else if (ranks_.rank() == receiver) {
      there = expected_of_message(stages_->receive(from, kEvaluationTag), there);
    }
  }
  carried_.insert_or_assign(
      key,
      Carried{c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()), there, version});
  return there;
}

void EvaluationCarrier::share_generator(StageSet owners, const at::Generator& generator) {
  const int from = ranks_.rank_of(owners.first());
  if (ranks_.rank() == from) {
    send_state(generator, *stages_, ranks_, owners, kEvaluationTag);
  } else if (!ranks_.holds(owners)) {
    set_state(generator, stages_->receive(from, kEvaluationTag).at(0));
  }
}

}  // namespace oslo
