#pragma once

#include <utility>

#include "parallelizers/placement/layout/layout.h"

namespace oslo {

/// How a parameter lies, and what training makes of it: its gradient, once data replicas have
/// exchanged it, and the states that an optimizer keeps of it. One layout where every replica has
/// all of the three; replicas that share out states (ZeRO 1) or gradients too (ZeRO 2, Rajbhandari
/// et al. 2020, arXiv 1910.02054) lay those otherwise. All null for an ordinary tensor.
///
/// Who reads which: checkpoints of weights `parameter`, norms of gradients `gradient`, checkpoints
/// and resharding of an optimizer `state`.
struct ParameterLayouts {
  ParameterLayouts() = default;
  explicit ParameterLayouts(const LayoutPtr& all) : parameter(all), gradient(all), state(all) {}
  ParameterLayouts(LayoutPtr parameter, LayoutPtr gradient, LayoutPtr state)
      : parameter(std::move(parameter)), gradient(std::move(gradient)), state(std::move(state)) {}

  LayoutPtr parameter, gradient, state;
};

}  // namespace oslo
