#pragma once

#include <string>
#include <unordered_set>
#include <vector>

namespace oslo::recompute {

/// Throws for what is no kind of operators that can be kept.
void check_kind(const std::string& kind);

/// All of them.
std::vector<std::string> kinds_to_keep();

/// The same question for many operators.
class OfKinds {
 public:
  explicit OfKinds(const std::vector<std::string>& kinds);
  bool operator()(const std::string& op) const;

 private:
  std::unordered_set<std::string> names_;
  std::vector<std::string> beginnings_;
};

/// Whether an operator ("aten::mm") is of one of these kinds.
bool is_of_kinds(const std::string& op, const std::vector<std::string>& kinds);

}  // namespace oslo::recompute
