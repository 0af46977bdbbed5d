#include "oslo_cpp/initialize/plan_only.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "mpu/base/environment.h"
#include "mpu/base/error.h"
#include "oslo_cpp/explain/explanation.h"

namespace oslo {

namespace {

void write_page(const std::string& path, const Explanation& explanation) {
  std::ofstream page(path, std::ios::binary);
  page << explanation.to_html() << std::flush;
  OSLO_CHECK_AS(file, page, "oslo plan: cannot write ", path, "; give --html a file that can be");
}

/// Of `oslo plan`.
constexpr int kDoesNotFit = 3;

bool fits(const PlanMemory& memory) {
  return std::all_of(memory.stages.begin(), memory.stages.end(),
                     [](const StageMemory& stage) { return stage.within > 0; });
}

void print(const ParallelModel& parallel, const Plan& plan) {
  const bool explains = read_switch(Variable::plan_explain).value_or(false);
  const bool json = read_variable(Variable::plan_format) == "json";
  std::optional<Explanation> explanation;
  if (explains) explanation = parallel.explain();
  if (json) {
    nlohmann::json all = plan.to_json();
    if (explanation) all["explain"] = explanation->to_json();
    std::cout << all.dump(2) << std::endl;
  } else {
    std::cout << plan.to_string();
    if (explanation) std::cout << "\n" << explanation->to_string();
    std::cout << std::flush;
  }
  const auto page = read_variable(Variable::plan_page);
  if (explanation && page) write_page(*page, *explanation);
}

}  // namespace

void print_plan_and_exit(const ParallelModel& parallel) {
  const Plan plan = parallel.plan();
  print(parallel, plan);
  std::cerr << "oslo plan: this was the plan; the program ends here" << std::endl;
  // Not exit(): the program is in the middle of its work, perhaps with threads.
  std::_Exit(!std::cout ? 1 : fits(plan.forecast.memory) ? 0 : kDoesNotFit);
}

}  // namespace oslo
