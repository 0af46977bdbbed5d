#include "parallelizers/plan/automatic_plan.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <tuple>

namespace oslo {
namespace {

/// Layers that hold less than this part of the parameters need not be cut.
constexpr double kSmall = 0.02;
/// Runs that the search may take, at most and for a model of many layers.
constexpr int64_t kMostRuns = 150;
constexpr int64_t kLayerRuns = 9000;

/// Layers that play the same part: the same path but for numbers, the same weight shape.
struct Role {
  std::vector<size_t> layers;  ///< positions in the plan
  std::vector<StyleText> options;
  bool free = true;  ///< for the search to decide

  bool has(const StyleText& style) const {
    return std::any_of(options.begin(), options.end(), [&](const StyleText& option) {
      return option.style == style.style && option.blocks == style.blocks &&
             option.unit == style.unit;
    });
  }
  bool offers(Style style) const {
    return std::any_of(options.begin(), options.end(),
                       [&](const StyleText& option) { return option.style == style; });
  }
};

std::string byte_text(int64_t bytes) {
  if (bytes < 10000) return c10::str(bytes, " B");
  double value = static_cast<double>(bytes) / 1e3;
  const char* unit = "KB";
  for (const char* larger : {"MB", "GB", "TB"}) {
    if (value < 1e4) break;
    value /= 1e3;
    unit = larger;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.1f %s", value, unit);
  return text;
}

std::string role_name(const LayerPlan& layer) {
  std::string text;
  for (const char c : layer.path) {
    const bool digit = isdigit(static_cast<unsigned char>(c)) != 0;
    if (!digit) text += c;
    if (digit && (text.empty() || text.back() != '#')) text += '#';
  }
  return c10::str(text, layer.weight().sizes(), static_cast<int>(layer.kind), layer.asked_for);
}

bool divides(LayerPlan layer, const StyleText& style, int ranks) {
  layer.style = style;
  const int64_t size = layer.cut_size();
  return size % (style.blocks * style.unit) == 0 && size / style.unit >= ranks;
}

/// The cuts that a layer can have.
std::vector<StyleText> options_of(const LayerPlan& layer, int ranks) {
  std::vector<StyleText> options;
  switch (layer.kind) {
    case LayerKind::embedding:
      options = {{Style::vocab}, {Style::column}};
      break;
    case LayerKind::attention:
      options = {layer.style};
      break;
    default:
      options = {{Style::column, 1, layer.weight().size(0) / layer.groups()}, {Style::row}};
      if (layer.groups() == 1) options[0].unit = 1;
      if (layer.groups() > 1) options.pop_back();
  }
  std::erase_if(options, [&](const StyleText& style) { return !divides(layer, style, ranks); });
  if (options.empty()) options.push_back({});
  return options;
}

class Search {
 public:
  Search(std::vector<LayerPlan>& layers, const std::shared_ptr<torch::nn::Module>& model, int ranks,
         const std::function<void()>& example)
      : layers_(layers), run_(model, ranks, example) {
    make_roles(ranks);
    most_runs_ =
        std::clamp<int64_t>(kLayerRuns / std::max<size_t>(1, layers.size()), 20, kMostRuns);
  }

  PlanSearch plan() {
    const Choice first = current();
    PlanSearch result;
    result.structural = cost_of(first);
    most_bytes_ = result.structural.bytes;
    if (result.structural.gathers > 0) forget_guesses(first);
    Choice best = from_nothing();
    if (!better(cost_of(best), cost_of(first))) best = first;
    if (!allowed(best)) best = from_nothing();
    while (improve(best)) {
    }
    take(best);
    explain(best);
    result.found = cost_of(best);
    result.runs = run_.runs();
    result.value_readers = run_.value_readers();
    return result;
  }

 private:
  /// A style for each role.
  using Choice = std::vector<Style>;

  bool better(const DryCost& a, const DryCost& b) const {
    const auto key = [&](const DryCost& cost) {
      return std::tuple(cost.bytes > most_bytes_, cost.gathers, cost.bytes);
    };
    return key(a) < key(b);
  }

  /// Names that say "three blocks" may mislead: begins again from one block, where that is better,
  /// and lets the operators ask.
  void forget_guesses(const Choice& first) {
    for (size_t r = 0; r < roles_.size(); ++r) {
      const bool linear = layers_[roles_[r].layers.front()].kind == LayerKind::linear;
      const StyleText guessed = learned_[r][first[r]];
      if (!roles_[r].free || !linear || guessed.blocks == 1) continue;
      const DryCost before = cost_of(first);
      learned_[r][first[r]] = StyleText{first[r]};
      costs_.erase(first);
      if (better(cost_of(first), before)) continue;
      learned_[r][first[r]] = guessed;
      costs_[first] = before;
    }
  }

  void make_roles(int ranks) {
    int64_t total = 0;
    std::map<const c10::TensorImpl*, bool> known;
    std::map<std::string, size_t> by_name;
    for (size_t i = 0; i < layers_.size(); ++i) {
      const LayerPlan& layer = layers_[i];
      // A tied layer follows the first of its weight.
      if (!known.emplace(layer.weight().unsafeGetTensorImpl(), true).second) continue;
      total += layer.weight().numel();
      const auto [found, added] = by_name.emplace(role_name(layer), roles_.size());
      if (added) roles_.push_back({{}, options_of(layer, ranks), !layer.asked_for});
      roles_[found->second].layers.push_back(i);
    }
    learned_.resize(roles_.size());
    for (size_t r = 0; r < roles_.size(); ++r) {
      Role& role = roles_[r];
      const LayerPlan& layer = layers_[role.layers.front()];
      learned_[r][layer.style.style] = layer.style;
      for (const StyleText& option : role.options) learned_[r].emplace(option.style, option);
      // The first plan's own cut is always one: the result must not be worse.
      if (layer.style.style != Style::replicate && !role.offers(layer.style.style)) {
        role.options.push_back(layer.style);
      }
      const int64_t size = layer.weight().numel() * static_cast<int64_t>(role.layers.size());
      const bool table = layer.embedding() && layer.style.style == Style::replicate;
      if (table || static_cast<double>(size) < kSmall * static_cast<double>(total)) {
        role.options.insert(role.options.begin(), StyleText{});
      }
    }
  }

  Choice current() const {
    Choice choice;
    for (const Role& role : roles_) choice.push_back(layers_[role.layers.front()].style.style);
    return choice;
  }

  bool allowed(const Choice& choice) const {
    for (size_t r = 0; r < roles_.size(); ++r) {
      if (roles_[r].free && !roles_[r].offers(choice[r])) return false;
    }
    return true;
  }

  /// Writes a choice into the layers.
  void take(const Choice& choice) {
    for (size_t r = 0; r < roles_.size(); ++r) {
      for (const size_t i : roles_[r].layers) {
        if (roles_[r].free) {
          const auto known = learned_[r].find(choice[r]);
          layers_[i].style = known == learned_[r].end() ? StyleText{choice[r]} : known->second;
        }
      }
    }
    follow_ties(layers_);
  }

  DryCost cost_of(const Choice& choice) {
    const auto known = costs_.find(choice);
    if (known != costs_.end()) return known->second;
    take(choice);
    DryCost cost;
    try {
      cost = run_.run(layers_);
    } catch (const std::exception&) {
      // Not every cut can run every model (a write to a view that had to be gathered); the first
      // plan has to.
      if (costs_.empty()) throw;
      cost.bytes = cost.gathers = std::numeric_limits<int64_t>::max();
    }
    for (size_t r = 0; r < roles_.size(); ++r) {
      learned_[r][choice[r]] = layers_[roles_[r].layers.front()].style;
    }
    return costs_[choice] = cost;
  }

  bool spent() const { return run_.runs() >= most_runs_; }

  /// Role by role, with those to come whole.
  Choice from_nothing() {
    Choice choice = current_fixed();
    for (size_t r = 0; r < roles_.size(); ++r) {
      if (roles_[r].free) choose(choice, r);
    }
    return choice;
  }

  Choice current_fixed() const {
    Choice choice;
    for (const Role& role : roles_) {
      choice.push_back(role.free ? Style::replicate : layers_[role.layers.front()].style.style);
    }
    return choice;
  }

  void choose(Choice& choice, size_t r) {
    const auto& options = roles_[r].options;
    Choice best = choice;
    best[r] = options.front().style;
    for (size_t i = 1; i < options.size() && !spent(); ++i) {
      Choice other = choice;
      other[r] = options[i].style;
      if (better(cost_of(other), cost_of(best))) best = other;
    }
    choice = best;
  }

  /// One sweep over single roles and neighbouring pairs; whether it found something cheaper.
  bool improve(Choice& choice) {
    const Choice before = choice;
    const auto consider = [&](const Choice& other) {
      if (costs_.count(other) == 0 && spent()) return;
      if (better(cost_of(other), cost_of(choice))) choice = other;
    };
    std::vector<size_t> free;
    for (size_t r = 0; r < roles_.size(); ++r) {
      if (roles_[r].free && roles_[r].options.size() > 1) free.push_back(r);
    }
    for (const size_t r : free) {
      for (const StyleText& option : roles_[r].options) {
        Choice other = choice;
        other[r] = option.style;
        consider(other);
      }
    }
    for (size_t i = 0; i + 1 < free.size(); ++i) {
      for (const StyleText& a : roles_[free[i]].options) {
        for (const StyleText& b : roles_[free[i + 1]].options) {
          Choice other = choice;
          other[free[i]] = a.style;
          other[free[i + 1]] = b.style;
          consider(other);
        }
      }
    }
    return choice != before;
  }

  /// Says for each layer what its other cuts would have moved.
  void explain(const Choice& choice) {
    const DryCost cost = costs_.at(choice);
    for (size_t r = 0; r < roles_.size(); ++r) {
      if (!roles_[r].free) continue;
      std::string text = c10::str(to_string(choice[r]), ", ", byte_text(cost.bytes), " a step");
      for (const StyleText& option : roles_[r].options) {
        Choice other = choice;
        other[r] = option.style;
        const auto known = costs_.find(other);
        if (option.style == choice[r] || known == costs_.end()) continue;
        const bool runs = known->second.bytes < std::numeric_limits<int64_t>::max();
        text += "; " + to_string(option.style) +
                (runs ? " would move " + byte_text(known->second.bytes) : " cannot be run");
      }
      if (roles_[r].options.front().style == Style::replicate)
        text += "; small enough to stay whole";
      const StyleText& style = layers_[roles_[r].layers.front()].style;
      if (!roles_[r].has(style) && style.style != Style::replicate) {
        text += c10::str("; the example asks for blocks ", style.blocks, ", unit ", style.unit);
      }
      for (const size_t i : roles_[r].layers) layers_[i].why = text;
    }
    follow_ties(layers_);
  }

  std::vector<LayerPlan>& layers_;
  DryRun run_;
  std::vector<Role> roles_;
  /// Blocks and units that operators asked for, by role and style.
  std::vector<std::map<Style, StyleText>> learned_;
  std::map<Choice, DryCost> costs_;
  int64_t most_runs_ = 0;
  int64_t most_bytes_ = std::numeric_limits<int64_t>::max();  ///< those of the first plan
};

}  // namespace

PlanSearch plan_automatically(std::vector<LayerPlan>& layers,
                              const std::shared_ptr<torch::nn::Module>& model, int ranks,
                              const std::function<void()>& example) {
  return Search(layers, model, ranks, example).plan();
}

}  // namespace oslo
