#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <unordered_set>
#include <vector>

#include "mpu/group/group.h"
#include "parallelizers/placement/residency/stage_ranks.h"

namespace oslo {

/// What becomes of models that a step gives gradients to and is not of: the end of a refusal.
inline constexpr char kNameAllModels[] =
    "; make it of all models that the step trains, PipelineSchedule({parallel, other}), or keep "
    "gradients from the others by detach() or requires_grad_(false)";

/// Finds gradients that a step on pipeline stages gives to parameters of models which it is not
/// of: nobody would average them over data replicas, nor add up those of copies. Such a model may
/// be looked at (a teacher, what goes in detached).
///
/// One thread at a time. Costs a look-up for each use of a parameter.
class StrayGradients {
 public:
  using Parameters = std::unordered_set<const c10::TensorImpl*>;

  /// `own`: the parameters of the step's models. `averages`: there are data replicas; otherwise
  /// only parameters that several ranks of the pipeline have copies of need a step's care.
  StrayGradients(Parameters own, const StageRanks& ranks, bool averages);

  /// A forward is about to use a parameter, on stages that all ranks know. Every rank tells it.
  void use(const at::Tensor& parameter);

  /// Behind the step's passes. Throws on every rank where a parameter that is none of `own` has got
  /// a gradient on one. Collective over the pipeline's `stages` if a forward has used one that
  /// might; nothing otherwise.
  void check(Group& stages) const;

 private:
  struct Used {
    at::Tensor parameter, gradient;  ///< as it was before the first use
    uint64_t version;                ///< of the gradient
    bool changed() const;
  };

  const StageRanks ranks_;
  const bool averages_;
  Parameters known_;
  std::vector<Used> used_;
};

}  // namespace oslo
