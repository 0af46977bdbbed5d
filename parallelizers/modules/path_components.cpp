#include "parallelizers/modules/path_components.h"

#include <algorithm>
#include <sstream>

namespace oslo {

std::vector<std::string> path_components(const std::string& path) {
  std::vector<std::string> parts;
  std::istringstream stream(path);
  for (std::string part; std::getline(stream, part, '.');) parts.push_back(part);
  return parts;
}

bool matches_path(const std::string& pattern, const std::string& path) {
  const auto wanted = path_components(pattern), parts = path_components(path);
  return std::equal(
      wanted.begin(), wanted.end(), parts.begin(), parts.end(),
      [](const std::string& one, const std::string& part) { return one == "*" || one == part; });
}

}  // namespace oslo
