#include "parallelizers/stages/stage_patterns.h"

#include <algorithm>
#include <string_view>

#include "mpu/base/error.h"
#include "parallelizers/modules/path_components.h"

namespace oslo {
namespace {

bool is_number(std::string_view text) {
  return !text.empty() && text.size() < 10 &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// "*", "0-5" or a name.
bool matches_component(const std::string& wanted, const std::string& part) {
  if (wanted == "*" || wanted == part) return true;
  const size_t dash = wanted.find('-');
  if (dash == std::string::npos || !is_number(part)) return false;
  const std::string first = wanted.substr(0, dash), last = wanted.substr(dash + 1);
  if (!is_number(first) || !is_number(last)) return false;
  return std::stoi(first) <= std::stoi(part) && std::stoi(part) <= std::stoi(last);
}

/// Whether the path is what the pattern says, or lies beneath that.
bool matches(const std::string& pattern, const std::string& path) {
  const auto wanted = path_components(pattern), parts = path_components(path);
  if (wanted.size() > parts.size()) return false;
  return std::equal(wanted.begin(), wanted.end(), parts.begin(), matches_component);
}

/// The weakest first.
StagePatterns ordered(StagePatterns patterns) {
  const auto strength = [](const std::string& pattern) {
    return std::pair(path_components(pattern).size(),
                     -std::count(pattern.begin(), pattern.end(), '*'));
  };
  std::stable_sort(patterns.begin(), patterns.end(), [&](const auto& a, const auto& b) {
    return strength(a.first) < strength(b.first);
  });
  return patterns;
}

}  // namespace

void place_by_patterns(const StagePatterns& patterns, int stages, StagePlaces& parameters,
                       StagePlaces& buffers) {
  for (const auto& [pattern, wanted] : ordered(patterns)) {
    StageSet set;
    for (const int stage : wanted) {
      OSLO_CHECK_AS(config, stage < stages, "stages pattern \"", pattern, "\" names stage ", stage,
                    ", the pipeline has ", stages,
                    stages == 1 ? " stage; set the pipeline size" : " stages, counted from 0");
      set = set | StageSet::of(stage);
    }
    bool found = false;
    for (StagePlaces* places : {&parameters, &buffers}) {
      for (auto& [path, place] : *places) {
        if (!matches(pattern, path)) continue;
        place = set;
        found = true;
      }
    }
    OSLO_CHECK_AS(
        config, found, "stages pattern \"", pattern,
        "\" matches no parameter or buffer of the model (* stands for one component of a "
        "path, 0-5 for a number from 0 to 5)",
        parameters.empty() ? "" : "; the first one is \"" + parameters.front().first + "\"");
  }
}

}  // namespace oslo
