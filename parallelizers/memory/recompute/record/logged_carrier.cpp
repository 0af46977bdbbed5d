#include "parallelizers/memory/recompute/record/logged_carrier.h"

#include "mpu/base/error.h"

namespace oslo::recompute {

at::Tensor LoggedCarrier::carry(const at::Tensor& tensor, const Value& value, int to) {
  return log_.values.emplace_back(carrier_.carry(tensor, value, to));
}

at::Tensor LoggedCarrier::hand_over(const at::Tensor& tensor, const Value& value, StageSet stages) {
  return log_.values.emplace_back(carrier_.hand_over(tensor, value, stages));
}

void LoggedCarrier::share_generator(StageSet owners, const at::Generator& generator) {
  carrier_.share_generator(owners, generator);
}

std::vector<c10::IValue> LoggedCarrier::share_read(StageSet owners,
                                                   std::vector<c10::IValue> results) {
  return log_.reads.emplace_back(carrier_.reads()->share_read(owners, std::move(results)));
}

at::Tensor ReplayedCarrier::next() {
  OSLO_CHECK(value_ < log_.values.size(),
             "checkpoint: running again, an operator needs more from "
             "other pipeline stages than it did in forward");
  return log_.values[value_++];
}

at::Tensor ReplayedCarrier::carry(const at::Tensor&, const Value&, int) {
  return next();
}

at::Tensor ReplayedCarrier::hand_over(const at::Tensor&, const Value&, StageSet) {
  return next();
}

std::vector<c10::IValue> ReplayedCarrier::share_read(StageSet, std::vector<c10::IValue>) {
  OSLO_CHECK(read_ < log_.reads.size(),
             "checkpoint: running again, an operator reads more of other "
             "pipeline stages than it did in forward");
  return log_.reads[read_++];
}

}  // namespace oslo::recompute
