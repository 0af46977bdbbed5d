#include "oslo_cpp/initialize/plan_only.h"

#include <cstdlib>
#include <iostream>
#include <nlohmann/json.hpp>

#include "mpu/base/environment.h"

namespace oslo {

void print_plan_and_exit(const ParallelModel& parallel) {
  const Plan plan = parallel.plan();
  if (read_variable(Variable::plan_format) == "json") {
    std::cout << plan.to_json().dump(2) << std::endl;
  } else {
    std::cout << plan.to_string() << std::flush;
  }
  std::cerr << "oslo plan: this was the plan; the program ends here" << std::endl;
  // Not exit(): the program is in the middle of its work, perhaps with threads.
  std::_Exit(std::cout ? 0 : 1);
}

}  // namespace oslo
