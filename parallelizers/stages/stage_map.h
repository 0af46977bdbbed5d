#pragma once

#include <ATen/core/Tensor.h>

#include <unordered_map>

#include "parallelizers/placement/residency/stage_set.h"

namespace oslo {

/// Which pipeline stages hold a parameter or buffer. Those of models without a pipeline are in
/// nobody's: every rank holds them.
class StageMap {
 public:
  bool empty() const { return stages_.empty(); }
  /// No stage in particular for a tensor that was not added.
  StageSet of(const at::Tensor& tensor) const {
    const auto found = stages_.find(tensor.unsafeGetTensorImpl());
    return found == stages_.end() ? StageSet() : found->second;
  }
  /// One more stage, or several, for a tensor.
  void add(const at::Tensor& tensor, StageSet stages) {
    StageSet& known = stages_[tensor.unsafeGetTensorImpl()];
    known = known | stages;
  }
  /// These stages and no others for a tensor.
  void set(const at::Tensor& tensor, StageSet stages) {
    stages_[tensor.unsafeGetTensorImpl()] = stages;
  }

 private:
  std::unordered_map<const c10::TensorImpl*, StageSet> stages_;
};

}  // namespace oslo
