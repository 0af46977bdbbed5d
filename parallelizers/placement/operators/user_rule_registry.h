#pragma once

#include <functional>
#include <memory>
#include <string>

namespace oslo {

class Call;

/// A rule that a program registered for an operator (register_rule.h).
struct UserRule {
  std::function<void(Call&)> function;
  void (*run)(Call&) = nullptr;  ///< calls `function`, as the rule of the operator's entry
  std::string text;              ///< the map as it was written, for messages
};

/// One a process, beside LibTorch's registry of operators. Throws, naming the operator, where it
/// has a rule already, or where its entry has been taken without one. Threads may call these
/// together.
void add_user_rule(const std::string& name, UserRule rule);

/// The rule of an operator, or null. From now on adding one is refused: the operator's entry is
/// made by what this returns, and kept.
std::shared_ptr<const UserRule> take_user_rule(const std::string& name);

/// Every rule, one a line in order of names: what ranks must have alike.
std::string user_rules_text();

}  // namespace oslo
