#pragma once

#include <initializer_list>
#include <string>
#include <unordered_map>

#include "parallelizers/placement/engine/operator_entry.h"

namespace oslo {

/// Operators by name, with what to do with placed values. Constant: filled once from the families
/// in rules/. An operator that is not here is handled by what it is (see fallback.h): pointwise
/// operators follow the cut, composite ones are decomposed, the rest gather.
class RuleTable {
 public:
  static const RuleTable& instance();

  Rule find(const std::string& name) const;
  /// Whether the operator is listed as pointwise although its schema does not say so.
  bool listed_pointwise(const std::string& name) const;

  /// For the families: one rule for several operators (overloads named as in "aten::add.Tensor").
  void add(std::initializer_list<const char*> names, Rule rule);
  void add_pointwise(std::initializer_list<const char*> names);

  const std::unordered_map<std::string, Rule>& rules() const { return rules_; }

 private:
  RuleTable();
  std::unordered_map<std::string, Rule> rules_;
};

}  // namespace oslo
