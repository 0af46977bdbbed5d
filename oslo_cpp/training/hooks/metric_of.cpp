#include "oslo_cpp/training/hooks/metric_of.h"

#include "mpu/base/error.h"

namespace oslo {

double metric_of(const Training& training, const std::string& metric, const std::string& for_whom) {
  const auto at = training.metrics.find(metric);
  if (at != training.metrics.end()) return at->second;
  std::string names;
  for (const auto& [name, mean] : training.metrics) names += (names.empty() ? "" : ", ") + name;
  fail(for_whom, ": there is no metric '", metric, "'; there are ", names,
       ". Give fit() a test loader for those of an evaluation");
}

}  // namespace oslo
