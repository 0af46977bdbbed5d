#include "parallelizers/plan/search/joined_sums.h"

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/world/agreement.h"
#include "parallelizers/plan/layers/planned_uses.h"

namespace oslo {
namespace {

using Terms = PartialSum::Terms;

class EndedSums final : public SumWatch {
 public:
  void ended(const PartialSum& sum) override { ended_.push_back(sum.terms); }

  /// Of products that ended in one sum, together, wherever they were used.
  std::vector<Terms> joined() const {
    std::vector<Terms> found;
    for (const Terms& terms : ended_) {
      if (terms.size() < 2 || std::ranges::find(found, terms) != found.end()) continue;
      if (std::ranges::all_of(ended_, [&](const Terms& other) { return apart(terms, other); })) {
        found.push_back(terms);
      }
    }
    return found;
  }

 private:
  /// Whether two sums are of the same products, or of none in common.
  static bool apart(const Terms& a, const Terms& b) {
    return a == b ||
           std::ranges::none_of(a, [&](int term) { return std::ranges::find(b, term) != b.end(); });
  }

  std::vector<Terms> ended_;
};

/// Whether the layer's result is the sum of products of rows, of which no pattern says anything.
bool may_join(const LayerPlan& layer, bool scattered) {
  return layer.kind == LayerKind::linear && layer.style.style == Style::row &&
         layer.other_styles.empty() && (scattered || layer.use == AxisUse{}) && !layer.computed &&
         !layer.decided;
}

/// The same result as one of several in a sum.
AxisUse in_sum(AxisUse use, int sum, int parts) {
  if (use.result == AxisUse::Result::reduce) use.result = AxisUse::Result::join;
  if (use.result == AxisUse::Result::scatter) use.result = AxisUse::Result::join_scatter;
  use.sum = sum;
  use.parts = parts;
  return use;
}

AxisUse by_itself(const AxisUse& use) {
  if (use.result != AxisUse::Result::join_scatter) return {};
  return {AxisUse::Result::scatter, use.dim};
}

/// Lets the sum of every layer that may join others wait; false where there is none.
bool let_wait(std::vector<LayerPlan>& layers, const std::set<size_t>& scattered) {
  std::map<const c10::TensorImpl*, int> uses;
  for (const LayerPlan& layer : layers) ++uses[layer.weight().unsafeGetTensorImpl()];
  int found = 0;
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool alone = uses[layers[i].weight().unsafeGetTensorImpl()] == 1;
    if (!alone || !may_join(layers[i], scattered.contains(i))) continue;
    layers[i].use = in_sum(layers[i].use, static_cast<int>(i), 0);
    ++found;
  }
  return found > 1;
}

std::vector<Terms> sums_of(std::vector<LayerPlan> layers, DryRun& run,
                           const std::set<size_t>& scattered) {
  if (!let_wait(layers, scattered)) return {};
  const auto ended = std::make_shared<EndedSums>();
  run.watch_sums(ended);
  const auto unwatched = c10::make_scope_exit([&] { run.watch_sums(nullptr); });
  try {
    run.run(layers);
  } catch (const std::exception&) {
    return {};  // the forward ran before with sums that do not wait, and goes on without
  }
  return ended->joined();
}

/// Says of each layer with which others its sum is reduced.
void explain(std::vector<LayerPlan>& layers) {
  for (LayerPlan& layer : layers) {
    if (!joins_sum(layer)) continue;
    const bool scatters = layer.use.result == AxisUse::Result::join_scatter;
    layer.why += scatters ? "; one reduce-scatter" : "; one all-reduce";
    layer.why += " for its sum with";
    for (const LayerPlan& other : layers) {
      const bool together = joins_sum(other) && other.use.sum == layer.use.sum;
      if (together && &other != &layer) layer.why += " " + other.path;
    }
  }
}

}  // namespace

DryCost join_sums(std::vector<LayerPlan>& layers, DryRun& run, const DryCost& apart,
                  const std::set<size_t>& scattered) {
  const std::vector<Terms> sums = sums_of(layers, run, scattered);
  if (sums.empty()) return apart;
  const std::vector<LayerPlan> before = layers;
  int number = 0;
  for (const Terms& terms : sums) {
    ++number;
    for (const int term : terms) {
      layers[term].use = in_sum(layers[term].use, number, static_cast<int>(terms.size()));
    }
  }
  const DryCost joined = run.run(layers);
  if (joined.bytes < apart.bytes && joined.gathers <= apart.gathers) return joined;
  layers = before;
  return apart;
}

void agree_on_sums(const World& world, std::vector<LayerPlan>& layers) {
  std::string text;
  for (const LayerPlan& layer : layers) {
    if (joins_sum(layer)) text += c10::str(layer.path, " in sum ", layer.use.sum, "\n");
  }
  try {
    agree_on_text(world, "initialize: the sums of the plan", text, "each branch is reduced");
  } catch (const Error& error) {
    if (kind_of(error) == ErrorKind::peer) throw;
    for (LayerPlan& layer : layers) {
      if (joins_sum(layer)) layer.use = by_itself(layer.use);
    }
  }
  explain(layers);
}

}  // namespace oslo
