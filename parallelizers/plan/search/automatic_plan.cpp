#include "parallelizers/plan/search/automatic_plan.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <tuple>

#include "parallelizers/plan/search/joined_sums.h"
#include "parallelizers/plan/search/role_choices.h"

namespace oslo {
namespace {

/// Runs that the search may take, at most and for a model of many layers.
constexpr int64_t kMostDryRuns = 150;
constexpr int64_t kLayerRuns = 9000;

/// A layer's work may stay undivided where dividing it would make the step longer by more than
/// this.
constexpr double kWorthWhole = 1.1;

class Search {
 public:
  Search(std::vector<LayerPlan>& layers, const ModelView& model, const PlanAxes& axes,
         const std::function<void()>& example, FirstWrites& writes, bool cut_own_parameters,
         const Rates& rates, int64_t memory_limit)
      : layers_(layers),
        memory_limit_(memory_limit),
        run_(model, axes, example, writes, rates),
        choices_(layers, axes.searched_ranks(), run_),
        cut_own_parameters_(cut_own_parameters) {
    most_runs_ =
        std::clamp<int64_t>(kLayerRuns / std::max<size_t>(1, layers.size()), 20, kMostDryRuns);
  }

  PlanSearch plan() {
    Styles first = choices_.current();
    PlanSearch result;
    result.structural = cost_of(first);
    if (set_computed(layers_, run_.computed())) {  // the rest is planned without them
      choices_.make_roles();
      first = choices_.current();
      result.structural = cost_of(first);
    }
    most_bytes_ = result.structural.bytes;
    if (result.structural.gathers > 0) forget_guesses(first);
    Styles best = from_nothing();
    if (!better(best, first)) best = first;
    if (!choices_.allowed(best)) best = from_nothing();
    while (improve(best)) {
    }
    if (cut_own_parameters_) best = with_parameters(best);
    result.found = cost_of(best);
    choices_.take(best);
    choices_.explain(best);
    // On top of the cuts: a sum that waits changes nothing of how layers lie.
    result.found = join_sums(layers_, run_, result.found);
    result.one_device = one_device();
    result.runs = run_.runs();
    result.value_readers = run_.value_readers();
    result.computed = run_.computed();
    return result;
  }

 private:
  using Styles = RoleChoices::Styles;

  DryCost cost_of(const Styles& choice) { return choices_.cost_of(choice); }

  /// Whether `a` beats `b`. Time counts as if each role that leaves its work to every rank made the
  /// step longer by a tenth: such a role stays whole only where cutting it takes more than that.
  bool better(const Styles& a, const Styles& b) {
    const auto key = [&](const Styles& choice) {
      const DryCost cost = cost_of(choice);
      const int64_t excess =
          memory_limit_ > 0 ? std::max<int64_t>(0, cost.memory() - memory_limit_) : 0;
      double seconds = cost.seconds;
      for (size_t r = 0; r < choices_.size(); ++r) {
        const Role& role = choices_.role(r);
        const bool whole = choice[r] == bare({});
        if (role.free && role.shares_work && whole) seconds *= kWorthWhole;
      }
      const bool over = cost.bytes > most_bytes_ && !cuts_recurrent(choice);
      return std::tuple(excess, over, cost.gathers, seconds, cost.bytes);
    };
    return key(a) < key(b);
  }

  bool cuts_recurrent(const Styles& styles) const {
    for (size_t r = 0; r < choices_.size(); ++r) {
      const Role& role = choices_.role(r);
      if (role.recurrent && role.free && styles[r] != bare({})) return true;
    }
    return false;
  }

  /// What a step takes with every layer whole. The search ends with this run.
  double one_device() {
    std::vector<LayerPlan> whole = layers_;
    for (LayerPlan& layer : whole) {
      layer.style = {};
      layer.other_styles.clear();
    }
    try {
      return run_.run(whole).seconds;
    } catch (const std::exception&) {
      return 0;  // layers that an earlier initialize cut stay so
    }
  }

  /// Names that say "three blocks" may mislead: begins again from one block, where that is better,
  /// and lets the operators ask.
  void forget_guesses(const Styles& first) {
    for (size_t r = 0; r < choices_.size(); ++r) {
      const bool guesses = choices_.layer(r).traits().guesses_blocks;
      const LayerStyle guessed = choices_.learned(r, first[r]);
      if (!choices_.role(r).free || !guesses || guessed.blocks == 1) continue;
      const DryCost before = cost_of(first);
      choices_.learned(r, first[r]) = LayerStyle{first[r].first};
      choices_.replace(first, std::nullopt);
      const DryCost after = cost_of(first);
      const auto key = [](const DryCost& cost) { return std::tuple(cost.gathers, cost.bytes); };
      if (key(after) < key(before)) continue;
      choices_.learned(r, first[r]) = guessed;
      choices_.replace(first, before);
    }
  }

  /// What cutting large parameters of the user's own modules moves comes on top of the first plan,
  /// which leaves them whole: a matrix that nobody cuts saves no memory. Those of which every cut
  /// has to be gathered stay whole. Begins with each parameter's cheapest cut while the others are
  /// whole, and with one after the other from either end, and improves the best of these.
  Styles with_parameters(const Styles& whole) {
    std::vector<size_t> waiting;
    for (size_t r = 0; r < choices_.size(); ++r) {
      if (choices_.waits(r)) waiting.push_back(r);
    }
    if (waiting.empty()) return whole;
    choices_.keep_calls_of(whole);
    most_runs_ += run_.runs();
    std::vector<size_t> large;
    Styles alone = whole;
    for (const size_t r : waiting) {
      Role& role = choices_.role(r);
      role.free = true;  // small ones are cut only where that moves less
      if (!role.large) continue;
      const Styles found = cheapest_cut(whole, r);
      if (found == whole) continue;
      role.forbid_whole();
      alone[r] = found[r];
      large.push_back(r);
    }
    std::vector<Styles> starts{alone};
    for (int end = 0; end < 2; ++end) {
      Styles choice = whole;
      for (const size_t r : large) {
        const Styles next = cheapest_cut(choice, r);
        choice[r] = next == choice ? alone[r] : next[r];
      }
      starts.push_back(choice);
      std::reverse(large.begin(), large.end());
    }
    Styles best = whole;
    for (const Styles& start : starts) {
      if (!cost_of(start).possible()) continue;
      most_bytes_ = std::max(most_bytes_, cost_of(start).bytes);
      if (best == whole || better(start, best)) best = start;
    }
    while (improve(best)) {
    }
    return best;
  }

  /// With role `r` cut as moves least; unchanged where every cut has to be gathered.
  Styles cheapest_cut(const Styles& choice, size_t r) {
    Styles best = choice;
    for (const LayerStyle& option : choices_.role(r).options) {
      Styles other = choice;
      other[r] = bare(option);
      if (other == choice || (!choices_.knows(other) && spent())) continue;
      if (cost_of(other).gathers > cost_of(choice).gathers) continue;
      if (best == choice || cost_of(other).seconds < cost_of(best).seconds) best = other;
    }
    return best;
  }

  bool spent() const { return run_.runs() >= most_runs_; }

  /// Role by role, with those to come whole.
  Styles from_nothing() {
    Styles choice = choices_.current_fixed();
    for (size_t r = 0; r < choices_.size(); ++r) {
      if (choices_.role(r).free) choose(choice, r);
    }
    return choice;
  }

  void choose(Styles& choice, size_t r) {
    const auto& options = choices_.role(r).options;
    Styles best = choice;
    best[r] = bare(options.front());
    for (size_t i = 1; i < options.size() && !spent(); ++i) {
      Styles other = choice;
      other[r] = bare(options[i]);
      if (better(other, best)) best = other;
    }
    choice = best;
  }

  /// One sweep over single roles and neighbouring pairs; whether it found something cheaper.
  bool improve(Styles& choice) {
    const Styles before = choice;
    const auto consider = [&](const Styles& other) {
      if (!choices_.knows(other) && spent()) return;
      if (better(other, choice)) choice = other;
    };
    std::vector<size_t> free;
    for (size_t r = 0; r < choices_.size(); ++r) {
      if (choices_.role(r).free && choices_.role(r).options.size() > 1) free.push_back(r);
    }
    for (const size_t r : free) {
      for (const LayerStyle& option : choices_.role(r).options) {
        Styles other = choice;
        other[r] = bare(option);
        consider(other);
      }
    }
    for (size_t i = 0; i + 1 < free.size(); ++i) {
      for (const LayerStyle& a : choices_.role(free[i]).options) {
        for (const LayerStyle& b : choices_.role(free[i + 1]).options) {
          Styles other = choice;
          other[free[i]] = bare(a);
          other[free[i + 1]] = bare(b);
          consider(other);
        }
      }
    }
    return choice != before;
  }

  std::vector<LayerPlan>& layers_;
  int64_t memory_limit_;
  DryRun run_;
  RoleChoices choices_;
  bool cut_own_parameters_;
  int64_t most_runs_ = 0;
  int64_t most_bytes_ = std::numeric_limits<int64_t>::max();  ///< those of the first plan
};

}  // namespace

PlanSearch plan_automatically(std::vector<LayerPlan>& layers, const ModelView& model,
                              const PlanAxes& axes, const std::function<void()>& example,
                              FirstWrites& writes, bool cut_own_parameters, const Rates& rates,
                              int64_t memory_limit) {
  return Search(layers, model, axes, example, writes, cut_own_parameters, rates, memory_limit)
      .plan();
}

}  // namespace oslo
