#include "parallelizers/plan/apply/parallel_class.h"

#include <set>

#include "parallelizers/placement/carrier/mark.h"

namespace oslo {

std::string parallel_class(const LayerPlan& layer) {
  if (!layer.cuts_weight() || layer.parameter() || mark_of(layer.weight()) == nullptr) return {};
  std::set<Style> styles = {layer.style.style};
  for (const auto& [axis, style] : layer.other_styles) styles.insert(style.style);
  styles.erase(Style::replicate);
  if (styles.size() != 1) return {};  // row on one axis, column on another
  const Style style = *styles.begin();
  const auto name_of = layer.traits().parallel_class;
  return name_of == nullptr ? "" : name_of(style);
}

}  // namespace oslo
