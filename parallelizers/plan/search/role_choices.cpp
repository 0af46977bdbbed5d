#include "parallelizers/plan/search/role_choices.h"

#include <c10/util/StringUtil.h>

#include <exception>

#include "mpu/base/bytes.h"
#include "parallelizers/plan/search/choice_text.h"

namespace oslo {

void RoleChoices::make_roles() {
  roles_ = roles_of(layers_, ranks_);
  costs_.clear();
  waits_.clear();
  learned_.assign(roles_.size(), {});
  for (size_t r = 0; r < roles_.size(); ++r) {
    Role& role = roles_[r];
    const LayerStyle& first = layer(r).style;
    learned_[r][bare(first)] = first;
    for (const LayerStyle& option : role.options) learned_[r].emplace(bare(option), option);
    waits_.push_back(role.free && role.parameter);
    if (waits_.back()) role.free = false;
  }
}

RoleChoices::Styles RoleChoices::current() const {
  Styles choice;
  for (size_t r = 0; r < roles_.size(); ++r) choice.push_back(bare(layer(r).style));
  return choice;
}

RoleChoices::Styles RoleChoices::current_fixed() const {
  Styles choice;
  for (size_t r = 0; r < roles_.size(); ++r) {
    choice.push_back(roles_[r].free ? bare({}) : bare(layer(r).style));
  }
  return choice;
}

bool RoleChoices::allowed(const Styles& choice) const {
  for (size_t r = 0; r < roles_.size(); ++r) {
    if (roles_[r].free && !roles_[r].offers(choice[r])) return false;
  }
  return true;
}

void RoleChoices::take(const Styles& choice) {
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

DryCost RoleChoices::cost_of(const Styles& choice) {
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
  for (size_t r = 0; r < roles_.size(); ++r) learned_[r][choice[r]] = layer(r).style;
  return costs_[choice] = cost;
}

void RoleChoices::replace(const Styles& choice, const std::optional<DryCost>& cost) {
  costs_.erase(choice);
  if (cost) costs_[choice] = *cost;
}

std::string RoleChoices::why(const Styles& choice, size_t r) const {
  const DryCost& cost = costs_.at(choice);
  const LayerStyle& style = layer(r).style;
  const bool whole = style.style == Style::replicate;
  std::string text =
      style.name() + ", " + byte_text(cost.bytes) + " and " + time_text(cost.seconds) + " a step";
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
  return text;
}

void RoleChoices::explain(const Styles& choice) {
  for (size_t r = 0; r < roles_.size(); ++r) {
    if (!roles_[r].free) continue;
    const std::string text = why(choice, r);
    for (const size_t i : roles_[r].layers) layers_[i].why = text;
  }
  follow_ties(layers_);
}

}  // namespace oslo
