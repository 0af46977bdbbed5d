#include "parallelizers/plan/search/context_plan.h"

#include <algorithm>
#include <array>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/base/text.h"

namespace oslo {
namespace {

constexpr const char* kInstead =
    "say by \"plan\" which inputs lie cut, as in \"embed\": \"context: replicate input=-2\"";

/// Which dimension of their inputs layers take this rank's part of; nothing: as it comes.
struct Inputs {
  std::optional<int64_t> of_lookups, of_products;
};

/// In the order in which they are preferred, other things being equal.
constexpr std::array<Inputs, 4> kChoices{
    {{-1, std::nullopt}, {-2, std::nullopt}, {-1, -2}, {-2, -3}}};

bool is_lookup(const LayerPlan& layer) {
  return layer.embedding() && layer.traits().one_result;
}

std::optional<int64_t> input_of(const LayerPlan& layer, const Inputs& inputs) {
  if (layer.decided || layer.computed) return std::nullopt;
  if (is_lookup(layer)) return inputs.of_lookups;
  return layer.kind == LayerKind::linear ? inputs.of_products : std::nullopt;
}

std::vector<LayerPlan> with(std::vector<LayerPlan> layers, const Inputs& inputs,
                            SequenceOrder order) {
  for (LayerPlan& layer : layers) {
    const std::optional<int64_t> dim = input_of(layer, inputs);
    if (!dim) continue;
    const bool head_tail = order == SequenceOrder::head_tail;
    AxisUse& use = layer.other_styles[kContextAxis].use;
    use.input_dim = dim;
    use.input_head_tail = head_tail;
    layer.why += "; its input lies cut along the sequence";
    if (head_tail) layer.why += ", head and tail";
  }
  return layers;
}

bool says_context(const LayerPlan& layer) {
  return layer.other_styles.count(kContextAxis) > 0;
}

/// The choice with which a rank keeps the fewest bytes; none where the example cannot be run on
/// shapes. Throws where no choice keeps less than the whole.
std::optional<Inputs> seen_in_example(const std::vector<LayerPlan>& layers, const ModelView& model,
                                      const PlanAxes& axes, const std::function<void()>& example,
                                      const Rates& rates) {
  FirstWrites writes;
  DryRun run(model, axes, example, writes, rates);
  std::string not_run;  // why the example could not be run with the first choice that failed
  const auto kept = [&](const Inputs& inputs) -> std::optional<int64_t> {
    std::vector<LayerPlan> tried = with(layers, inputs, SequenceOrder::contiguous);
    try {
      return run.run(tried).kept_bytes;
    } catch (const ConfigError&) {
      throw;                                 // of attention that cannot be done as the config says
    } catch (const std::exception& error) {  // mostly an input without such a dimension
      if (not_run.empty()) not_run = first_line(message_of(error));
      return std::nullopt;
    }
  };
  const std::optional<int64_t> whole = kept({});
  if (!whole) return std::nullopt;
  std::optional<Inputs> found;
  int64_t least = *whole;
  for (const Inputs& inputs : kChoices) {
    const std::optional<int64_t> bytes = kept(inputs);
    if (!bytes || *bytes >= least) continue;
    least = *bytes;
    found = inputs;
  }
  OSLO_CHECK_AS(config, found,
                "the axis \"context\" cuts sequences, and no input of a look-up or a "
                "linear layer of this model can be cut so that a rank keeps less: ",
                kInstead, not_run.empty() ? "" : ". The example could not be run so: " + not_run);
  return found;
}

}  // namespace

void cut_context(std::vector<LayerPlan>& layers, const ModelView& model, const PlanAxes& axes,
                 const std::function<void()>& example, const Rates& rates, SequenceOrder order) {
  if (!axes.has(kContextAxis) || std::ranges::any_of(layers, says_context)) return;
  std::optional<Inputs> found;
  if (example) found = seen_in_example(layers, model, axes, example, rates);
  OSLO_CHECK_AS(config, found || std::ranges::any_of(layers, is_lookup),
                "the axis \"context\" cuts sequences, and which dimension is one is seen where a "
                "look-up begins the forward, or in an example of it: set "
                "InitializeOptions::example_inputs, or ",
                kInstead);
  layers = with(std::move(layers), found.value_or(kChoices.front()), order);
}

}  // namespace oslo
