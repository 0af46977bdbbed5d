#include "parallelizers/placement/operators/user_rule_registry.h"

#include <map>
#include <mutex>
#include <set>

#include "mpu/base/error.h"

namespace oslo {
namespace {

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const UserRule>> rules;
  std::set<std::string> taken;
};

Registry& registry() {
  static Registry& registry = *new Registry();
  return registry;
}

}  // namespace

void add_user_rule(const std::string& name, UserRule rule) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const auto found = all.rules.find(name);
  if (found != all.rules.end()) {
    fail("register_rule(\"", name, "\"): it has a rule already, ", found->second->text,
         "; register it once in a process (ranks that are threads share it)");
  }
  OSLO_CHECK(all.taken.count(name) == 0, "register_rule(\"", name,
             "\"): a parallel model has used the operator already, without this rule; register it "
             "before initialize");
  all.rules[name] = std::make_shared<const UserRule>(std::move(rule));
}

std::shared_ptr<const UserRule> take_user_rule(const std::string& name) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.taken.insert(name);
  const auto found = all.rules.find(name);
  return found == all.rules.end() ? nullptr : found->second;
}

std::string user_rules_text() {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::string text;
  for (const auto& [name, rule] : all.rules) text += "rule of " + name + ": " + rule->text + "\n";
  return text;
}

}  // namespace oslo
