#include "parallelizers/plan/search/sequence_plan.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "mpu/base/error.h"
#include "mpu/base/text.h"
#include "parallelizers/placement/operators/planned_results.h"
#include "parallelizers/plan/layers/planned_uses.h"
#include "parallelizers/plan/layers/role.h"
#include "parallelizers/plan/search/joined_sums.h"

namespace oslo {
namespace {

/// Of [batch, sequence, features] and [sequence, batch, features].
constexpr int64_t kBehindBatch = -2, kInFrontOfBatch = -3;

/// A model may look at single positions of its stream (BERT's pooler at the first), which gathers
/// it. Who asks for sequence parallelism gets it all the same, for up to so many times the bytes.
constexpr double kMostBytes = 2;

/// How a layer's result comes to lie cut; nothing where it is features that its plan cuts, or where
/// it is no sequence.
std::optional<AxisUse> use_along(const LayerPlan& layer, int64_t dim) {
  if (layer.decided || layer.computed || says_use(layer) || !layer.traits().one_result) return {};
  const Style style = layer.style.style;
  if (layer.embedding()) {
    if (style == Style::vocab) return AxisUse{AxisUse::Result::scatter, dim};
    if (style == Style::replicate) return AxisUse{AxisUse::Result::split, dim};
    return {};
  }
  const bool sums = layer.kind == LayerKind::linear && style == Style::row;
  return sums ? std::optional(AxisUse{AxisUse::Result::scatter, dim}) : std::nullopt;
}

bool in_attention(const LayerPlan& layer, const std::vector<LayerPlan>& layers) {
  return std::any_of(layers.begin(), layers.end(), [&](const LayerPlan& other) {
    return other.kind == LayerKind::attention && layer.path.starts_with(other.path + ".");
  });
}

class SequenceSearch {
 public:
  SequenceSearch(std::vector<LayerPlan>& layers, DryRun& run, int ranks)
      : layers_(layers), run_(run) {
    for (const Role& role : roles_of(layers, ranks)) {
      if (use_along(layers[role.layers.front()], kBehindBatch)) roles_.push_back(role.layers);
    }
    has_attention_ = std::any_of(layers.begin(), layers.end(), [](const LayerPlan& layer) {
      return layer.kind == LayerKind::attention;
    });
  }

  SequencePlan plan() {
    SequencePlan found;
    found.before = found.after = run_.run(layers_);
    all_at_once(found);
    if (cuts_any()) {
      if (found.after.gathers > found.before.gathers) turn_some(found);
    } else {
      role_by_role(found);
    }
    tell();
    // On top of that: the branches of a block that end in one sum are scattered together.
    if (cuts_any()) found.after = join_sums(layers_, run_, found.after, scattered_);
    found.runs = run_.runs();
    return found;
  }

  /// Why nothing is cut.
  std::string reason() const {
    if (roles_.empty()) return "the plan has no linear layer cut by row, and no embedding";
    return reason_.empty() ? refused_ : reason_;
  }

  bool cuts_any() const {
    return std::any_of(dims_.begin(), dims_.end(), [](int64_t dim) { return dim != 0; });
  }

 private:
  /// A dimension for each role; 0 leaves its result as it is.
  using Dims = std::vector<int64_t>;

  Dims with_dims(int64_t of_tables, int64_t in_attentions, int64_t of_others) const {
    Dims dims;
    for (const auto& role : roles_) {
      const LayerPlan& layer = layers_[role.front()];
      dims.push_back(layer.embedding()              ? of_tables
                     : in_attention(layer, layers_) ? in_attentions
                                                    : of_others);
    }
    return dims;
  }

  /// How programs hold their streams, the likely ones first.
  std::vector<Dims> streams() const {
    constexpr int64_t kBehind = kBehindBatch, kFront = kInFrontOfBatch;
    if (!has_attention_) {
      return {with_dims(kBehind, 0, kBehind), with_dims(kBehind, 0, kFront),
              with_dims(kFront, 0, kFront)};
    }
    return {with_dims(kBehind, kFront, kFront),   // turned behind the embedding
            with_dims(kFront, kFront, kFront),    // [sequence, batch, features] all the way
            with_dims(kBehind, kFront, kBehind),  // turned for LibTorch's attention, and back
            with_dims(kBehind, kBehind, kBehind)};
  }

  std::vector<LayerPlan> with(const Dims& dims) const {
    std::vector<LayerPlan> layers = layers_;
    for (size_t r = 0; r < roles_.size(); ++r) {
      for (const size_t i : roles_[r]) {
        if (dims[r] == 0) continue;
        if (const auto use = use_along(layers[i], dims[r])) layers[i].use = *use;
      }
    }
    return layers;
  }

  /// Takes a plan over that keeps less than `kept` and has at most `gathers`.
  bool take(const Dims& dims, SequencePlan& found, int64_t kept, int64_t gathers) {
    std::vector<LayerPlan> layers = with(dims);
    DryCost cost;
    try {
      cost = run_.run(layers);
    } catch (const PlanMismatch&) {
      refused_ = "its result has no such dimension";
      return false;
    } catch (const std::exception& error) {
      refused_ = first_line(message_of(error));
      return false;
    }
    const auto most = static_cast<double>(found.before.bytes) * kMostBytes;
    if (cost.gathers > gathers || static_cast<double>(cost.bytes) > most) {
      reason_ = refused_ = "it would be gathered behind the layer";
      return false;
    }
    if (cost.kept_bytes >= kept) {
      reason_ = refused_ = "a rank would keep no less for backward";
      return false;
    }
    found.after = cost;
    chosen_ = std::move(layers);
    dims_ = dims;
    return true;
  }

  /// The first of the streams that needs the fewest gathers.
  void all_at_once(SequencePlan& found) {
    if (roles_.empty()) return;
    int64_t gathers = std::numeric_limits<int64_t>::max() - 1;
    for (const Dims& dims : streams()) {
      if (take(dims, found, found.before.kept_bytes, gathers)) gathers = found.after.gathers - 1;
      if (gathers < found.before.gathers) return;
    }
  }

  /// Parts of a model may hold their streams otherwise (one for images beside one for text).
  void turn_some(SequencePlan& found) {
    for (size_t r = 0; r < roles_.size(); ++r) {
      take(turned(dims_, r), found, found.before.kept_bytes, found.after.gathers - 1);
    }
  }

  static Dims turned(Dims dims, size_t role) {
    dims[role] = dims[role] == kBehindBatch ? kInFrontOfBatch : kBehindBatch;
    return dims;
  }

  void role_by_role(SequencePlan& found) {
    const Dims likely = roles_.empty() ? Dims() : streams().front();
    Dims dims(roles_.size(), 0);
    reasons_.assign(roles_.size(), "");
    for (size_t r = 0; r < roles_.size(); ++r) {
      const auto takes = [&](int64_t dim) {
        Dims one = dims;
        one[r] = dim;
        return take(one, found, found.after.kept_bytes, found.before.gathers);
      };
      bool taken = takes(likely[r]);
      if (!taken) {
        reasons_[r] = refused_;
        taken = takes(turned(likely, r)[r]);
      }
      if (taken) dims = dims_;
    }
  }

  /// Writes what was found into the layers.
  void tell() {
    if (!cuts_any()) return;
    layers_ = std::move(chosen_);
    for (size_t r = 0; r < roles_.size(); ++r) {
      for (const size_t i : roles_[r]) {
        if (layers_[i].use.result == AxisUse::Result::scatter) scattered_.insert(i);
        layers_[i].why += dims_[r] != 0
                              ? "; its result lies cut along the sequence"
                              : "; its result is not cut along the sequence: " + reasons_[r];
      }
    }
  }

  std::vector<LayerPlan>& layers_;
  DryRun& run_;
  std::vector<std::vector<size_t>> roles_;  ///< positions of layers whose results may be cut
  bool has_attention_ = false;
  Dims dims_;
  std::vector<LayerPlan> chosen_;
  std::set<size_t> scattered_;  ///< layers whose results are reduce-scattered
  std::string refused_;         ///< why the last plan was
  std::string reason_;          ///< why a plan was that could be run
  std::vector<std::string> reasons_;
};

}  // namespace

SequencePlan cut_along_sequence(std::vector<LayerPlan>& layers, const ModelView& model,
                                const PlanAxes& axes, const std::function<void()>& example,
                                const Rates& rates) {
  FirstWrites writes;
  DryRun run(model, axes, example, writes, rates);
  SequenceSearch search(layers, run, axes.searched_ranks());
  const SequencePlan found = search.plan();
  forget_computed(layers, run.computed());
  const bool said = std::any_of(layers.begin(), layers.end(), says_use);
  OSLO_CHECK_AS(
      config, said || search.cuts_any(),
      "'sequence_parallel' = true: the result of no layer of this model can lie cut along "
      "a sequence: ",
      search.reason(),
      "; remove the key, or say by \"plan\" which results lie cut: \"row scatter=-2\"");
  return found;
}

}  // namespace oslo
