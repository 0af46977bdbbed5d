#include "oslo_cpp/explain/explain_example.h"

#include <optional>
#include <utility>

#include "oslo_cpp/explain/step_recorder.h"
#include "parallelizers/plan/dry/dry_run.h"
#include "parallelizers/plan/dry/rates.h"
#include "parallelizers/plan/search/stage_search.h"

namespace oslo {

ExplainedExample explain_example(const ModelView& model, std::vector<LayerPlan> layers,
                                 const StageMap& stages, const PlanAxes& axes,
                                 const std::function<void()>& example) {
  const Rates rates = Rates::nominal();
  FirstWrites writes;
  std::optional<StepRecorder> recorder;
  // Of several runs the last one counts.
  DryRun run(
      model, axes, [&] { recorder->run(example); }, writes, rates);
  recorder.emplace(model, run.groups(), run.context(), /*on_shapes=*/true);
  run.hold_operands();
  run.set_stages(stages);
  run_over_stages(run, model, layers);
  ExplainedExample explained{recorder->take(), run.value_readers()};
  explained.explanation.of = "the example, on shapes";
  if (!stages.empty()) {
    explained.explanation.note = "what pipeline stages send each other is not in it";
  }
  return explained;
}

}  // namespace oslo
