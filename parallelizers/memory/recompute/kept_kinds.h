#pragma once

#include <string>
#include <vector>

namespace oslo::recompute {

/// Throws for what is no kind of operators that can be kept.
void check_kind(const std::string& kind);

/// All of them.
std::vector<std::string> kinds_to_keep();

/// Whether an operator ("aten::mm") is of one of these kinds.
bool is_of_kinds(const std::string& op, const std::vector<std::string>& kinds);

}  // namespace oslo::recompute
