#include "oslo_cpp/step/check_forward.h"

#include <optional>

#include "mpu/base/error.h"
#include "parallelizers/pipeline/schedule/order/check.h"
#include "parallelizers/plan/dry/forward_survey.h"

namespace oslo {

ForwardNeeds check_forward(const pipeline::Schedule& schedule, const StepModels& models,
                           const std::function<void()>& forward) {
  const auto shown = models.surveys();
  const auto survey_of = [&](bool stands) {
    if (shown) return stands ? shown->standing : shown->leaving;
    return survey_forward(models.stages(), models.context()->stage_ranks(), models.view(),
                          PlanAxes(models.mpu().grid()), forward, stands);
  };
  const auto checked = [&](bool stands) -> ForwardNeeds {
    const std::optional<ForwardSurvey> survey = survey_of(stands);
    if (!survey) return {};
    OSLO_CHECK(survey->refusal.empty(), "schedule ", schedule.kind, " (", schedule.chunks,
               " stages a rank) cannot run this model: ", survey->refusal,
               ". Take 1f1b, or look at the value behind that");
    pipeline::check_runs(schedule, survey->graph);
    return {stands, survey->writes};
  };
  try {
    return checked(/*stands=*/false);
  } catch (const Error& first) {
    try {
      return checked(/*stands=*/true);
    } catch (const Error&) {
      throw first;
    }
  }
}

}  // namespace oslo
