#pragma once

#include <set>
#include <vector>

#include "mpu/world/world.h"
#include "parallelizers/plan/dry/dry_run.h"
#include "parallelizers/plan/layers/layer_plan.h"

namespace oslo {

/// Finds the products whose partial sums the forward does nothing with but add them up, whole
/// values among them (a bias, the stream), and plans one all-reduce for each such sum: that of a
/// block whose branches are parallel (GPT-J, GPT-NeoX, PaLM: arXiv 2204.02311, section 2). One dry
/// run, in which all sums of rows wait for what uses them, shows which do; another one shows what
/// is saved, and nothing is planned where it is nothing. `apart`: what the plan costs as it is;
/// returns what it costs then. A sum that anything else uses in between
/// (dropout that drops, a hook, a number that somebody prints) is reduced where it is made.
/// Layers that patterns or policies say a result of stay as they are; those in `scattered`, whose
/// results a search has reduce-scattered (sequence_plan.h), join what is scattered alike, and their
/// sum is reduce-scattered.
DryCost join_sums(std::vector<LayerPlan>& layers, DryRun& run, const DryCost& apart,
                  const std::set<size_t>& scattered = {});

/// Plans no such sum, on any rank, unless all ranks found the same: one that looks at a branch in
/// its own forward would wait for the others. Layers say with which others they are reduced.
/// Collective over `world`.
void agree_on_sums(const World& world, std::vector<LayerPlan>& layers);

}  // namespace oslo
