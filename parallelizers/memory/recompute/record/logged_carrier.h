#pragma once

#include <ATen/core/ivalue.h>

#include <vector>

#include "parallelizers/placement/residency/stage_carrier.h"

namespace oslo::recompute {

/// What one operator got from other pipeline stages, in order.
struct CarriedLog {
  std::vector<at::Tensor> values;
  std::vector<std::vector<c10::IValue>> reads;
};

/// Has a thread's carrier carry, and notes in `log` what came of it.
class LoggedCarrier final : public StageCarrier, public ReadSharer {
 public:
  LoggedCarrier(StageCarrier& carrier, CarriedLog& log) : carrier_(carrier), log_(log) {}

  at::Tensor carry(const at::Tensor& tensor, const Value& value, int to) override;
  void enter(StageSet stages) override { carrier_.enter(stages); }
  at::Tensor hand_over(const at::Tensor& tensor, const Value& value, StageSet stages) override;
  void share_generator(StageSet owners, const at::Generator& generator) override;
  UseFollower* follower() override { return carrier_.follower(); }
  ReadSharer* reads() override { return carrier_.reads() == nullptr ? nullptr : this; }
  std::vector<c10::IValue> share_read(StageSet owners, std::vector<c10::IValue> results) override;

 private:
  StageCarrier& carrier_;
  CarriedLog& log_;
};

/// Carries nothing: gives what a LoggedCarrier noted, on this rank alone.
class ReplayedCarrier final : public StageCarrier, public ReadSharer {
 public:
  explicit ReplayedCarrier(const CarriedLog& log) : log_(log) {}

  at::Tensor carry(const at::Tensor& tensor, const Value& value, int to) override;
  at::Tensor hand_over(const at::Tensor& tensor, const Value& value, StageSet stages) override;
  void enter(StageSet) override {}
  void share_generator(StageSet, const at::Generator&) override {}
  ReadSharer* reads() override { return this; }
  std::vector<c10::IValue> share_read(StageSet owners, std::vector<c10::IValue> results) override;

 private:
  at::Tensor next();

  const CarriedLog& log_;
  size_t value_ = 0, read_ = 0;
};

}  // namespace oslo::recompute
