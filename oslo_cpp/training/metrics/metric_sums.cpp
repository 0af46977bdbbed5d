#include "oslo_cpp/training/metrics/metric_sums.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include "mpu/world/agreement.h"

namespace oslo {

void MetricSums::add(const std::string& name, const at::Tensor& sum, double count) {
  Sum& all = sums_[name];
  if (count == 0) return;
  const c10::AutoGradMode no_grad(false);
  const at::Tensor more = sum.detach().to(at::kDouble);
  all.on_device = all.on_device.defined() ? all.on_device + more : more;
  all.count += count;
}

void MetricSums::add(const std::string& name, double sum, double count) {
  Sum& all = sums_[name];
  if (count == 0) return;
  all.on_host += sum;
  all.count += count;
}

Metrics MetricSums::means(const MPU& mpu) const {
  std::string names;
  for (const auto& [name, sum] : sums_) names += name + "\n";
  agree_on_text(mpu.world(), "the names of metrics", names,
                "add each of them on every rank, by add(name, 0, 0) where there is no value");
  if (sums_.empty()) return {};
  at::Tensor all = at::empty({static_cast<int64_t>(sums_.size()), 2}, at::kDouble);
  auto* numbers = all.mutable_data_ptr<double>();
  for (const auto& [name, sum] : sums_) {
    *numbers++ = sum.on_host + (sum.on_device.defined() ? sum.on_device.item<double>() : 0);
    *numbers++ = sum.count;
  }
  for (const char* axis : {"data", "pipeline"}) {
    if (mpu.size(axis) > 1) all = mpu.group(axis)->all_reduce(all);
  }
  Metrics means;
  const double* seen = all.const_data_ptr<double>();
  for (const auto& [name, sum] : sums_) {
    means[name] = seen[0] / seen[1];
    seen += 2;
  }
  return means;
}

}  // namespace oslo
