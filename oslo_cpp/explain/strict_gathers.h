#pragma once

#include <mutex>
#include <string>

#include "oslo_cpp/explain/explanation.h"
#include "parallelizers/placement/layout/gather_watch.h"

namespace oslo {

/// Strict mode: as a model's `ModelContext::gather_watch`, it has every operator throw that would
/// gather a value which no rule keeps cut, and no plan has gathered. The error names the operator,
/// the module, how the value lies and what to do. It comes before anything is gathered, on every
/// rank, in backward (hooks, functions of the user's own) as well. What moves by plan does not
/// throw: partial sums, inputs that a weight's layout gathers, gradients that are put together;
/// neither does `oslo::full_tensor`. (veScale has such a switch, VESCALE_DISABLE_REDISTRIBUTE.)
/// On any threads.
class StrictGathers final : public GatherWatch {
 public:
  void about_to_gather(const UnplannedGather& gather) override;
  void about_to_use(const std::string& parameter) override;
  bool refuses() const override { return true; }

 private:
  std::mutex mutex_;
  std::string parameter_;  ///< that was used last
};

/// Throws for the first operator of the example that gathers, before any rank has run it.
void refuse_gathers(const Explanation& example);

}  // namespace oslo
