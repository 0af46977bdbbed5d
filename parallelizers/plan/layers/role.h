#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "parallelizers/plan/layers/layer_plan.h"

namespace oslo {

/// A style without its blocks and units, which operators ask for: what the search chooses.
using BareStyle = std::pair<Style, int64_t>;
BareStyle bare(const LayerStyle& style);

/// Layers that play the same part: the same path but for numbers, the same weight shape. Planned
/// once.
struct Role {
  std::vector<size_t> layers;  ///< positions in the plan
  std::vector<LayerStyle> options;
  bool free = true;        ///< for the search to decide
  bool large = false;      ///< enough of the model to be worth cutting
  bool parameter = false;  ///< of a user's own module
  bool recurrent = false;
  /// The ranks would all do its work where it stays whole: a layer that multiplies, and that the
  /// first plan cuts; recurrent layers, which it leaves whole.
  bool shares_work = false;

  bool has(const LayerStyle& style) const;
  bool offers(const BareStyle& style) const;
  /// Whether it may stay whole.
  bool offers_whole() const { return offers(bare({})); }
  void forbid_whole();
};

/// The roles of a first plan, in the tree's order, with the cuts that each can have. A layer that
/// is tied to an earlier one has no role of its own. Roles of less than 2% of the parameters,
/// tables that the first plan leaves whole, recurrent layers and parameters may stay whole as well.
std::vector<Role> roles_of(const std::vector<LayerPlan>& layers, int ranks);

/// "1.23 ms", "45 us", "2.5 s".
std::string time_text(double seconds);

}  // namespace oslo
