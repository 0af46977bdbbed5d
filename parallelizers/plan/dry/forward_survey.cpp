#include "parallelizers/plan/dry/forward_survey.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "parallelizers/pipeline/crossing/crossing.h"
#include "parallelizers/pipeline/crossing/forward_order.h"
#include "parallelizers/placement/residency/stage_carrier.h"
#include "parallelizers/plan/dry/dry_run.h"
#include "parallelizers/plan/dry/rates.h"

namespace oslo {
namespace {

template <typename Each>
void add_once(std::vector<Each>& all, const Each& one) {
  if (std::find(all.begin(), all.end(), one) == all.end()) all.push_back(one);
}

/// Takes shapes from stage to stage, and notes who waits for whom.
class SurveyCarrier final : public StageCarrier, public UseFollower, public ReadSharer {
 public:
  /// `known`: what another survey found of the same forward.
  SurveyCarrier(const StageRanks& ranks, bool stands_at_reads, const ForwardWrites& known)
      : ranks_(ranks), order_(ranks, stands_at_reads), known_(known) {
    graph().stages = ranks.stages();
  }

  void use(const at::Tensor& parameter, StageSet held, bool writes) override {
    const std::vector<int>* const places = known_.places(parameter);
    for (int rank = 0; rank < ranks_.ranks(); ++rank) {
      if (!ranks_.on_rank(held, rank)) continue;
      const bool waits = places != nullptr && static_cast<size_t>(rank) < places->size();
      if (waits) order_.go_on(rank, (*places)[rank]);
      survey_.writes.add(parameter, rank, order_.standing(rank), writes);
    }
  }
  UseFollower* follower() override { return this; }

  at::Tensor carry(const at::Tensor& tensor, const Value& value, int to) override {
    const uint64_t writes = writes_to(tensor, *value.layout->context());
    at::Tensor& there = carried_[{tensor.unsafeGetTensorImpl(), to, writes}];
    if (there.defined()) return there;
    there = place_for(value, to).set_requires_grad(value.local.requires_grad());
    kept_.push_back(tensor);
    const StageSet owners = value.layout->stages();
    const int from = ranks_.source_of(owners, to);
    const ForwardOrder::Crossing crossing = order_.cross(from, to);
    if (ranks_.rank_of(from) == ranks_.rank_of(to)) {
      // No other rank has to do with it.
    } else if (crossing.sent_in == order_.behind_all()) {
      survey_.refusal = c10::str(
          "the forward looks at a value of a late stage, and behind that computes on stage ", from,
          " what stage ", to, " needs");
    } else if (crossing.received_in == order_.behind_all()) {
      // It takes what has been sent by then.
    } else if (crossing.waits()) {
      add_once(graph().reads, {crossing.sent_in, crossing.received_in});
    } else if (crossing.sent_in < crossing.received_in) {
      add_once(graph().edges, {crossing.sent_in, crossing.received_in, false});
    }
    if (value.local.requires_grad()) add_once(graph().edges, {from, to, true});
    return there;
  }

  std::vector<c10::IValue> share_read(StageSet owners, std::vector<c10::IValue> results) override {
    note_read(owners);
    return results;
  }
  ReadSharer* reads() override { return this; }
  void share_generator(StageSet owners, const at::Generator&) override { note_read(owners); }

  ForwardSurvey take() {
    survey_.writes.keep_written();
    return std::move(survey_);
  }

 private:
  void note_read(StageSet owners) {
    order_.read(owners);
    const int read_in = order_.standing(ranks_.rank_of(owners.first()));
    for (int rank = 0; rank < ranks_.ranks(); ++rank) {
      const int stands = order_.standing(rank);
      if (ranks_.on_rank(owners, rank) || stands == order_.behind_all()) continue;
      if (read_in == order_.behind_all()) {
        survey_.refusal =
            "the forward looks at a value of a late stage, and behind that at one "
            "that an earlier stage computes then";
      } else if (read_in < stands) {
        add_once(graph().edges, {read_in, stands, false});
      } else {
        add_once(graph().reads, {read_in, stands});
      }
    }
  }
  pipeline::Graph& graph() { return survey_.graph; }

  const StageRanks& ranks_;
  ForwardOrder order_;
  const ForwardWrites& known_;
  ForwardSurvey survey_;
  /// A tensor, a stage, and how often the tensor had been written.
  std::map<std::tuple<const c10::TensorImpl*, int, uint64_t>, at::Tensor> carried_;
  std::vector<at::Tensor> kept_;
};

std::optional<ForwardSurvey> survey_once(const StageMap& stages, const StageRanks& ranks,
                                         const ModelView& model, const PlanAxes& axes,
                                         const std::function<void()>& forward, bool stands_at_reads,
                                         const ForwardWrites& known) {
  const Rates rates = Rates::nominal();
  std::optional<SurveyCarrier> carrier;
  try {
    FirstWrites writes;
    // The last of its runs counts.
    DryRun dry(
        model, axes,
        [&] {
          carrier.emplace(ranks, stands_at_reads, known);
          const StageCarrier::Scope scope(&*carrier);
          forward();
        },
        writes, rates);
    dry.set_stages(stages);
    std::vector<LayerPlan> no_layers;
    dry.run(no_layers);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  return carrier ? std::optional(carrier->take()) : std::nullopt;
}

}  // namespace

std::optional<ForwardSurvey> survey_forward(const StageMap& stages, const StageRanks& ranks,
                                            const ModelView& model, const PlanAxes& axes,
                                            const std::function<void()>& forward,
                                            bool stands_at_reads) {
  // To wait for the last use of what is written moves what comes behind the first one.
  ForwardWrites known;
  while (true) {
    auto survey = survey_once(stages, ranks, model, axes, forward, stands_at_reads, known);
    if (!survey || survey->writes == known) return survey;
    known = survey->writes;
  }
}

ForwardSurveys survey_forward(const StageMap& stages, const StageRanks& ranks,
                              const ModelView& model, const PlanAxes& axes,
                              const std::function<void()>& forward) {
  return {survey_forward(stages, ranks, model, axes, forward, /*stands_at_reads=*/false),
          survey_forward(stages, ranks, model, axes, forward, /*stands_at_reads=*/true)};
}

}  // namespace oslo
