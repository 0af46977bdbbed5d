#include "parallelizers/placement/operators/rule_table.h"

#include "mpu/base/error.h"

namespace oslo {
namespace {

/// Marks an operator as pointwise in the table; the door runs it as such.
void listed_as_pointwise(Call&) {}

}  // namespace

RuleTable::RuleTable() {
  register_rules(*this);
}

const RuleTable& RuleTable::instance() {
  static const RuleTable table;
  return table;
}

Rule RuleTable::find(const std::string& name) const {
  const auto found = rules_.find(name);
  if (found != rules_.end()) return found->second == listed_as_pointwise ? nullptr : found->second;
  for (const auto& [space, rule_of] : namespaces_) {
    if (name.starts_with(space)) return rule_of(name);
  }
  return nullptr;
}

bool RuleTable::listed_pointwise(const std::string& name) const {
  const auto found = rules_.find(name);
  return found != rules_.end() && found->second == listed_as_pointwise;
}

void RuleTable::add(std::initializer_list<const char*> names, Rule rule) {
  for (const char* name : names) {
    OSLO_CHECK(rules_.emplace(name, rule).second, "two rules for ", name);
  }
}

void RuleTable::add_namespace(const char* space, RuleOf rule_of) {
  namespaces_.emplace_back(space, rule_of);
}

void RuleTable::add_pointwise(std::initializer_list<const char*> names) {
  add(names, listed_as_pointwise);
}

}  // namespace oslo
