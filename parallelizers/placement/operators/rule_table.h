#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "parallelizers/placement/operators/rule.h"

namespace oslo {

/// Operators by name, with what to do with placed values. Constant: filled once by
/// `register_rules`. An operator that is not here is handled by what it is (see fallback.h):
/// pointwise operators follow the cut, composite ones are decomposed, the rest gather.
class RuleTable {
 public:
  static const RuleTable& instance();

  Rule find(const std::string& name) const;
  /// Whether the operator is listed as pointwise although its schema does not say so.
  bool listed_pointwise(const std::string& name) const;

  /// For the families: one rule for several operators (overloads named as in "aten::add.Tensor").
  void add(std::initializer_list<const char*> names, Rule rule);
  void add_pointwise(std::initializer_list<const char*> names);
  /// One function for all other operators whose names begin with `space` ("c10d::"): it says which
  /// rule each has.
  using RuleOf = Rule (*)(std::string_view name);
  void add_namespace(const char* space, RuleOf rule_of);

  const std::unordered_map<std::string, Rule>& rules() const { return rules_; }

 private:
  RuleTable();
  std::unordered_map<std::string, Rule> rules_;
  std::vector<std::pair<const char*, RuleOf>> namespaces_;
};

/// Adds every rule there is. It stands with the rules (rules/register.cpp), which know this table.
void register_rules(RuleTable& table);

}  // namespace oslo
