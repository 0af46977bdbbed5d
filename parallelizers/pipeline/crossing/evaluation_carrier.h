#pragma once

#include <c10/core/TensorImpl.h>

#include <map>
#include <memory>
#include <utility>

#include "mpu/group/group.h"
#include "parallelizers/placement/residency/stage_carrier.h"
#include "parallelizers/placement/residency/stage_ranks.h"

namespace oslo {

/// Takes values to other stages where no gradients are recorded and no step is under way: the bare
/// forward of an evaluation, which every rank calls. A value crosses once for each stage while it
/// lives, and again after it was written.
class EvaluationCarrier final : public StageCarrier {
 public:
  /// `stages`: the ranks that have this one's place on the stages, by stage.
  EvaluationCarrier(std::shared_ptr<Group> stages, StageRanks ranks)
      : stages_(std::move(stages)), ranks_(std::move(ranks)) {}

  at::Tensor carry(const at::Tensor& tensor, const Value& value, int to) override;
  void share_generator(StageSet owners, const at::Generator& generator) override;

 private:
  struct Carried {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    at::Tensor there;
    uint64_t version = 0;
  };

  std::shared_ptr<Group> stages_;
  const StageRanks ranks_;
  std::map<std::pair<const c10::TensorImpl*, int>, Carried> carried_;
};

}  // namespace oslo
