#include "parallelizers/modules/path_components.h"

#include <sstream>

namespace oslo {

std::vector<std::string> path_components(const std::string& path) {
  std::vector<std::string> parts;
  std::istringstream stream(path);
  for (std::string part; std::getline(stream, part, '.');) parts.push_back(part);
  return parts;
}

}  // namespace oslo
