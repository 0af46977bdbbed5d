#include "parallelizers/plan/automatic_plan.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <tuple>

#include "parallelizers/plan/choice_text.h"
#include "parallelizers/plan/role.h"

namespace oslo {
namespace {

/// Runs that the search may take, at most and for a model of many layers.
constexpr int64_t kMostRuns = 150;
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
        ranks_(axes.searched_ranks()),
        memory_limit_(memory_limit),
        run_(model, axes, example, writes, rates),
        cut_own_parameters_(cut_own_parameters) {
    make_roles();
    most_runs_ =
        std::clamp<int64_t>(kLayerRuns / std::max<size_t>(1, layers.size()), 20, kMostRuns);
  }

  PlanSearch plan() {
    Styles first = current();
    PlanSearch result;
    result.structural = cost_of(first);
    if (set_computed(layers_, run_.computed())) {  // the rest is planned without them
      make_roles();
      first = current();
      result.structural = cost_of(first);
    }
    most_bytes_ = result.structural.bytes;
    if (result.structural.gathers > 0) forget_guesses(first);
    Styles best = from_nothing();
    if (!better(best, first)) best = first;
    if (!allowed(best)) best = from_nothing();
    while (improve(best)) {
    }
    if (cut_own_parameters_) best = with_parameters(best);
    result.found = cost_of(best);
    take(best);
    explain(best);
    result.one_device = one_device();
    result.runs = run_.runs();
    result.value_readers = run_.value_readers();
    result.computed = run_.computed();
    return result;
  }

 private:
  /// For each role.
  using Styles = std::vector<BareStyle>;

  /// Whether `a` beats `b`. Time counts as if each role that leaves its work to every rank made the
  /// step longer by a tenth: such a role stays whole only where cutting it takes more than that.
  bool better(const Styles& a, const Styles& b) {
    const auto key = [&](const Styles& choice) {
      const DryCost cost = cost_of(choice);
      const int64_t excess =
          memory_limit_ > 0 ? std::max<int64_t>(0, cost.memory() - memory_limit_) : 0;
      double seconds = cost.seconds;
      for (size_t r = 0; r < roles_.size(); ++r) {
        const bool whole = choice[r] == bare({});
        if (roles_[r].free && roles_[r].shares_work && whole) seconds *= kWorthWhole;
      }
      const bool over = cost.bytes > most_bytes_ && !cuts_recurrent(choice);
      return std::tuple(excess, over, cost.gathers, seconds, cost.bytes);
    };
    return key(a) < key(b);
  }

  bool cuts_recurrent(const Styles& styles) const {
    for (size_t r = 0; r < roles_.size(); ++r) {
      if (roles_[r].recurrent && roles_[r].free && styles[r] != bare({})) return true;
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
    for (size_t r = 0; r < roles_.size(); ++r) {
      const bool linear = layers_[roles_[r].layers.front()].kind == LayerKind::linear;
      const LayerStyle guessed = learned_[r][first[r]];
      if (!roles_[r].free || !linear || guessed.blocks == 1) continue;
      const DryCost before = cost_of(first);
      learned_[r][first[r]] = LayerStyle{first[r].first};
      costs_.erase(first);
      const DryCost after = cost_of(first);
      const auto key = [](const DryCost& cost) { return std::tuple(cost.gathers, cost.bytes); };
      if (key(after) < key(before)) continue;
      learned_[r][first[r]] = guessed;
      costs_[first] = before;
    }
  }

  /// What cutting large parameters of the user's own modules moves comes on top of the first plan,
  /// which leaves them whole: a matrix that nobody cuts saves no memory. Those of which every cut
  /// has to be gathered stay whole. Begins with each parameter's cheapest cut while the others are
  /// whole, and with one after the other from either end, and improves the best of these.
  Styles with_parameters(const Styles& whole) {
    if (std::none_of(waits_.begin(), waits_.end(), [](bool waits) { return waits; })) return whole;
    calls_ = cost_of(whole).calls;
    most_runs_ += run_.runs();
    std::vector<size_t> large;
    Styles alone = whole;
    for (size_t r = 0; r < roles_.size(); ++r) {
      if (!waits_[r]) continue;
      roles_[r].free = true;  // small ones are cut only where that moves less
      if (!roles_[r].large) continue;
      const Styles found = cheapest_cut(whole, r);
      if (found == whole) continue;
      roles_[r].forbid_whole();
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
    for (const LayerStyle& option : roles_[r].options) {
      Styles other = choice;
      other[r] = bare(option);
      if (other == choice || (costs_.count(other) == 0 && spent())) continue;
      if (cost_of(other).gathers > cost_of(choice).gathers) continue;
      if (best == choice || cost_of(other).seconds < cost_of(best).seconds) best = other;
    }
    return best;
  }

  void make_roles() {
    roles_ = roles_of(layers_, ranks_);
    costs_.clear();
    waits_.clear();
    learned_.assign(roles_.size(), {});
    for (size_t r = 0; r < roles_.size(); ++r) {
      Role& role = roles_[r];
      const LayerStyle& first = layers_[role.layers.front()].style;
      learned_[r][bare(first)] = first;
      for (const LayerStyle& option : role.options) learned_[r].emplace(bare(option), option);
      waits_.push_back(role.free && role.parameter);
      if (waits_.back()) role.free = false;
    }
  }

  Styles current() const {
    Styles choice;
    for (const Role& role : roles_) choice.push_back(bare(layers_[role.layers.front()].style));
    return choice;
  }

  bool allowed(const Styles& choice) const {
    for (size_t r = 0; r < roles_.size(); ++r) {
      if (roles_[r].free && !roles_[r].offers(choice[r])) return false;
    }
    return true;
  }

  /// Writes a choice into the layers.
  void take(const Styles& choice) {
    for (size_t r = 0; r < roles_.size(); ++r) {
      if (!roles_[r].free) continue;
      const auto known = learned_[r].find(choice[r]);
      const LayerStyle style = known == learned_[r].end()
                                   ? LayerStyle{choice[r].first, 1, 1, choice[r].second}
                                   : known->second;
      for (const size_t i : roles_[r].layers) layers_[i].style = style;
    }
    follow_ties(layers_);
  }

  DryCost cost_of(const Styles& choice) {
    const auto known = costs_.find(choice);
    if (known != costs_.end()) return known->second;
    take(choice);
    DryCost cost;
    try {
      cost = run_.run(layers_);
      if (calls_ && cost.calls != *calls_) cost = DryCost::impossible();
    } catch (const std::exception&) {
      // Not every cut can run every model (a write to a view that had to be gathered); the first
      // plan has to.
      if (costs_.empty()) throw;
      cost = DryCost::impossible();
    }
    for (size_t r = 0; r < roles_.size(); ++r) {
      learned_[r][choice[r]] = layers_[roles_[r].layers.front()].style;
    }
    return costs_[choice] = cost;
  }

  bool spent() const { return run_.runs() >= most_runs_; }

  /// Role by role, with those to come whole.
  Styles from_nothing() {
    Styles choice = current_fixed();
    for (size_t r = 0; r < roles_.size(); ++r) {
      if (roles_[r].free) choose(choice, r);
    }
    return choice;
  }

  Styles current_fixed() const {
    Styles choice;
    for (const Role& role : roles_) {
      choice.push_back(role.free ? bare({}) : bare(layers_[role.layers.front()].style));
    }
    return choice;
  }

  void choose(Styles& choice, size_t r) {
    const auto& options = roles_[r].options;
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
      if (costs_.count(other) == 0 && spent()) return;
      if (better(other, choice)) choice = other;
    };
    std::vector<size_t> free;
    for (size_t r = 0; r < roles_.size(); ++r) {
      if (roles_[r].free && roles_[r].options.size() > 1) free.push_back(r);
    }
    for (const size_t r : free) {
      for (const LayerStyle& option : roles_[r].options) {
        Styles other = choice;
        other[r] = bare(option);
        consider(other);
      }
    }
    for (size_t i = 0; i + 1 < free.size(); ++i) {
      for (const LayerStyle& a : roles_[free[i]].options) {
        for (const LayerStyle& b : roles_[free[i + 1]].options) {
          Styles other = choice;
          other[free[i]] = bare(a);
          other[free[i + 1]] = bare(b);
          consider(other);
        }
      }
    }
    return choice != before;
  }

  /// Says for each layer what decided: what its other cuts would have moved and taken.
  void explain(const Styles& choice) {
    const DryCost cost = costs_.at(choice);
    for (size_t r = 0; r < roles_.size(); ++r) {
      if (!roles_[r].free) continue;
      const LayerStyle style = layers_[roles_[r].layers.front()].style;
      const bool whole = style.style == Style::replicate;
      std::string text = style.name() + ", " + byte_text(cost.bytes) + " and " +
                         time_text(cost.seconds) + " a step";
      bool gathered = true;  // whatever cut it has
      for (const LayerStyle& option : roles_[r].options) {
        Styles other = choice;
        other[r] = bare(option);
        const auto known = costs_.find(other);
        if (other == choice || known == costs_.end()) continue;
        text += "; " + option.name() + compared_text(known->second, cost);
        gathered &= known->second.possible() && known->second.gathers > cost.gathers;
      }
      if (whole) text += "; " + whole_text(roles_[r], gathered);
      if (!roles_[r].has(style) && !whole) {
        text += c10::str("; the example asks for blocks ", style.blocks, ", unit ", style.unit);
      }
      for (const size_t i : roles_[r].layers) layers_[i].why = text;
    }
    follow_ties(layers_);
  }

  std::vector<LayerPlan>& layers_;
  int ranks_;
  int64_t memory_limit_;
  DryRun run_;
  bool cut_own_parameters_;
  std::vector<Role> roles_;
  /// Blocks and units that operators asked for, by role and style.
  std::vector<std::map<BareStyle, LayerStyle>> learned_;
  std::map<Styles, DryCost> costs_;
  /// Roles that are cut when the rest is planned.
  std::vector<bool> waits_;
  /// What the forward calls. With parameters of its own cut it must be the same: a forward that
  /// reads the sizes of one would go on with those of a part.
  std::optional<uint64_t> calls_;
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
