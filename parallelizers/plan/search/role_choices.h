#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallelizers/plan/dry/dry_run.h"
#include "parallelizers/plan/layers/layer_plan.h"
#include "parallelizers/plan/layers/role.h"

namespace oslo {

/// What a search over a model's roles chooses from: a choice is a style for each role, and costs
/// what a dry run with it counts, which is run once.
class RoleChoices {
 public:
  /// For each role.
  using Styles = std::vector<BareStyle>;

  /// Of `layers` with a first plan, cut over `ranks`. `layers` and `run` outlive it.
  RoleChoices(std::vector<LayerPlan>& layers, int ranks, DryRun& run)
      : layers_(layers), ranks_(ranks), run_(run) {
    make_roles();
  }

  /// The roles of the layers as they are now. Forgets all costs.
  void make_roles();

  size_t size() const { return roles_.size(); }
  Role& role(size_t r) { return roles_[r]; }
  const Role& role(size_t r) const { return roles_[r]; }
  /// Whether it is a parameter of a user's own module, which is cut when the rest is planned.
  bool waits(size_t r) const { return waits_[r]; }
  /// The first of a role's layers, as the last choice was written into it.
  const LayerPlan& layer(size_t r) const { return layers_[roles_[r].layers.front()]; }

  /// What the layers have now.
  Styles current() const;
  /// The same with every free role whole.
  Styles current_fixed() const;
  /// Whether every free role offers its style.
  bool allowed(const Styles& choice) const;

  /// Writes a choice into the layers, with the blocks and units that operators asked for.
  void take(const Styles& choice);
  /// Has to be possible of the first choice that it is asked of, and throws what the example
  /// throws; of later ones a choice that the model cannot run with costs more than all others.
  DryCost cost_of(const Styles& choice);
  bool knows(const Styles& choice) const { return costs_.count(choice) > 0; }
  /// Replaces what is known of a choice; with nothing, it is run again.
  void replace(const Styles& choice, const std::optional<DryCost>& cost);

  /// The blocks and units of a role's style.
  LayerStyle& learned(size_t r, const BareStyle& style) { return learned_[r][style]; }

  /// From now on every choice calls what `choice` calls, or is impossible.
  void keep_calls_of(const Styles& choice) { calls_ = cost_of(choice).calls; }

  /// Writes into the layers what decided: what the other cuts would have moved and taken.
  void explain(const Styles& choice);

 private:
  std::string why(const Styles& choice, size_t r) const;

  std::vector<LayerPlan>& layers_;
  int ranks_;
  DryRun& run_;
  std::vector<Role> roles_;
  /// Blocks and units that operators asked for, by role and style.
  std::vector<std::map<BareStyle, LayerStyle>> learned_;
  std::map<Styles, DryCost> costs_;
  std::vector<bool> waits_;
  /// What the forward calls. With parameters of its own cut it must be the same: a forward that
  /// reads the sizes of one would go on with those of a part.
  std::optional<uint64_t> calls_;
};

}  // namespace oslo
