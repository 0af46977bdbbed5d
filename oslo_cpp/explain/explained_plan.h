#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "oslo_cpp/explain/explain_example.h"

namespace oslo {

/// The explanation of the plan that ranks have agreed on, or why there is none.
class ExplainedPlan {
 public:
  /// As `explain_example`; what the example throws on shapes is why there is none.
  void explain(const ModelView& model, const std::vector<LayerPlan>& layers, const StageMap& stages,
               const PlanAxes& axes, const std::function<void()>& example);
  /// No axis of more than one rank cuts layers.
  void nothing_is_cut();

  /// Throws where the plan gathers, of an example whose way does not depend on values.
  void refuse_gathers() const;

  /// For users; null: `why_not()`. `casts`: the model computes in half, which shapes do not show.
  /// `runs_again`: activations are computed again.
  std::shared_ptr<Explanation> told(bool casts, bool runs_again);
  const std::string& why_not() const { return why_not_; }

 private:
  std::optional<ExplainedExample> example_;
  std::string why_not_ = "initialize had no example_inputs";
};

}  // namespace oslo
