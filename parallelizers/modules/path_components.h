#pragma once

#include <string>
#include <vector>

namespace oslo {

/// "h.0.attn" as "h", "0", "attn": of a module's path, or of a pattern for one.
std::vector<std::string> path_components(const std::string& path);

/// Whether the pattern says the path, where "*" stands for one component.
bool matches_path(const std::string& pattern, const std::string& path);

}  // namespace oslo
