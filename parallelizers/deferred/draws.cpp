#include "parallelizers/deferred/draws.h"

#include <ATen/ATen.h>

#include <functional>
#include <set>
#include <vector>

#include "mpu/base/error.h"
#include "parallelizers/deferred/content.h"
#include "parallelizers/deferred/model_tensors.h"
#include "parallelizers/deferred/record.h"

namespace oslo {
namespace {

using VisitStep = std::function<void(const RecordedStep&)>;

/// Each step once, behind those that it depends on.
void visit_steps(const Recipe& recipe, std::set<const RecordedStep*>& seen,
                 const VisitStep& visit) {
  if (!recipe || seen.count(recipe.get()) > 0) return;
  for (const RecordedStep* step : steps_of(recipe)) {
    if (seen.count(step) > 0) continue;
    for (const RecordedOperand& operand : step->call->operands) {
      visit_steps(operand.recipe, seen, visit);
    }
    seen.insert(step);
    visit(*step);
  }
}

void visit_steps(const ModelView& model, const VisitStep& visit) {
  std::set<const RecordedStep*> seen;
  for_each_tensor_of(model, [&](const at::Tensor& tensor, const std::string&) {
    if (is_deferred(tensor)) visit_steps(content_of(tensor)->recipe, seen, visit);
  });
}

/// The calls that draw, each once.
std::vector<const RecordedCall*> drawing_calls(const ModelView& model) {
  std::vector<const RecordedCall*> calls;
  std::set<const RecordedCall*> seen;
  visit_steps(model, [&](const RecordedStep& step) {
    const RecordedCall* const call = step.call.get();
    if (call->draws_from && seen.insert(call).second) calls.push_back(call);
  });
  return calls;
}

}  // namespace

at::Tensor states_of_draws(const ModelView& model) {
  std::vector<at::Tensor> states{
      at::make_generator<at::CPUGeneratorImpl>().get_state().unsqueeze(0).slice(0, 0, 0)};
  for (const RecordedCall* call : drawing_calls(model)) {
    states.push_back(generator_at(*call->draws_from).get_state().unsqueeze(0));
  }
  return at::cat(states);
}

void set_states_of_draws(const ModelView& model, const at::Tensor& states) {
  const std::vector<const RecordedCall*> calls = drawing_calls(model);
  OSLO_CHECK(states.size(0) == static_cast<int64_t>(calls.size()), "states of ", states.size(0),
             " draws for a model of ", calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    at::Generator generator = at::make_generator<at::CPUGeneratorImpl>();
    generator.set_state(states[static_cast<int64_t>(i)].clone());
    calls[i]->draws_from = state_of(*at::check_generator<at::CPUGeneratorImpl>(generator));
  }
  visit_steps(model, [](const RecordedStep& step) {
    step.call->digest = digest_of_call(*step.call);
    step.digest = step.digest_now();
  });
}

}  // namespace oslo
