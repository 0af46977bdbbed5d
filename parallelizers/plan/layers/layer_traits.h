#pragma once

#include <vector>

#include "parallelizers/modules/model_view.h"
#include "parallelizers/plan/layers/style.h"

namespace oslo {

struct LayerPlan;

/// What a plan does with a kind of layer: a row of the table in layer_kinds.cpp. Which class of
/// modules is of which kind says parallelizers/modules/module_view.cpp.
struct LayerTraits {
  LayerKind kind;
  Style first, second;          ///< the styles that cut its weight's first and second dimension
  bool bare = false;            ///< a parameter, of no layer
  bool recurrent = false;       ///< its work is a step's for each position of a sequence
  bool one_result = false;      ///< a plan may scatter and split it
  bool guesses_blocks = false;  ///< the first plan takes blocks from its name, which may mislead

  /// Decides the first plan's style, and says why.
  void (*plan)(LayerPlan& layer);
  /// The cuts that a search may choose from; those that do not divide are left out later.
  std::vector<LayerStyle> (*options)(const LayerPlan& layer, int ranks);
  /// Whether a pattern with stars and this style, which is not replicate, speaks of it.
  bool (*meant)(Style style);
  /// Throws where what a pattern asks for does not fit; null: nothing of its own.
  void (*check)(const LayerPlan& layer, const LayerStyle& style) = nullptr;
  /// What a module needs when its parameters are cut; null: nothing.
  void (*after_cut)(torch::nn::Module& module) = nullptr;
  /// The class of hand-written layers that one of this style works as, or ""; null: none.
  const char* (*parallel_class)(Style style) = nullptr;
};

const LayerTraits& traits_of(LayerKind kind);

}  // namespace oslo
