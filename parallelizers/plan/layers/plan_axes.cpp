#include "parallelizers/plan/layers/plan_axes.h"

#include <algorithm>

namespace oslo {

PlanAxes::PlanAxes(const RankGrid& grid) {
  for (const std::string& name : grid.layer_axes()) axes.push_back({name, grid.size(name)});
  if (axes.empty()) axes.push_back({searched, 1});
  if (axes.size() == 1 && axes.front().name != kContextAxis) searched = axes.front().name;
  if (!has(searched)) searched.clear();
}

int PlanAxes::searched_ranks() const {
  for (const Axis& axis : axes) {
    if (axis.name == searched) return axis.size;
  }
  return 1;
}

int PlanAxes::ranks() const {
  int ranks = 1;
  for (const Axis& axis : axes) ranks *= axis.size;
  return ranks;
}

int PlanAxes::ranks_of_weights() const {
  int ranks = 1;
  for (const Axis& axis : axes) ranks *= axis.name == kContextAxis ? 1 : axis.size;
  return ranks;
}

bool PlanAxes::has(const std::string& name) const {
  return std::any_of(axes.begin(), axes.end(), [&](const Axis& axis) { return axis.name == name; });
}

std::string PlanAxes::names() const {
  std::string text;
  for (size_t i = 0; i < axes.size(); ++i) {
    text += (i == 0 ? "" : i + 1 < axes.size() ? ", " : " and ") + axes[i].name;
  }
  return text;
}

}  // namespace oslo
