#include "oslo_cpp/explain/explained_plan.h"

#include <exception>

#include "mpu/base/error.h"
#include "mpu/base/text.h"
#include "oslo_cpp/explain/strict_gathers.h"

namespace oslo {
namespace {

void add_note(Explanation& explanation, const std::string& note) {
  explanation.note += (explanation.note.empty() ? "" : "; ") + note;
}

}  // namespace

void ExplainedPlan::explain(const ModelView& model, const std::vector<LayerPlan>& layers,
                            const StageMap& stages, const PlanAxes& axes,
                            const std::function<void()>& example) {
  try {
    example_ = explain_example(model, layers, stages, axes, example);
  } catch (const std::exception& error) {
    why_not_ = "example_inputs could not be run on shapes: " + first_line(message_of(error));
  }
}

void ExplainedPlan::nothing_is_cut() {
  why_not_ = "no axis of more than one rank cuts layers, so that nothing moves within them";
}

void ExplainedPlan::refuse_gathers() const {
  if (example_ && example_->value_readers.empty()) oslo::refuse_gathers(example_->explanation);
}

std::shared_ptr<Explanation> ExplainedPlan::told(bool casts, bool runs_again) {
  if (!example_) return nullptr;
  if (casts) {
    why_not_ = "with 'amp' runs of example_inputs on shapes do not see the types";
    return nullptr;
  }
  auto explanation = std::make_shared<Explanation>(std::move(example_->explanation));
  if (!example_->value_readers.empty()) {
    add_note(*explanation,
             "the forward read values, zeros on shapes, by " + example_->value_readers.front());
  }
  if (runs_again) add_note(*explanation, "what is computed again moves again, which is not in it");
  return explanation;
}

}  // namespace oslo
