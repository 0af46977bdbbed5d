#pragma once

#include <ATen/core/ivalue.h>

#include <memory>
#include <utility>
#include <vector>

#include "parallelizers/placement/elsewhere/shape_call.h"
#include "parallelizers/placement/layout/value.h"
#include "parallelizers/placement/residency/residence.h"

namespace oslo {

/// Values that live on pipeline stages. An operator runs on the stages that all its operands have
/// in common, or on the highest of theirs, to which the thread's carrier takes the others; ranks of
/// other stages run it on shapes. Its heirs say who carries, and who answers, where no carrier is
/// there.
class StageResidence : public Residence {
 public:
  explicit StageResidence(StageRanks ranks, std::shared_ptr<Group> pipeline = nullptr,
                          at::Device device = at::kCPU)
      : Residence(std::move(ranks), std::move(pipeline), device),
        shapes_(std::make_shared<KnownShapes>()) {}

  CallPlace begin(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments,
                  const ContextPtr& context) override;
  Value operand(const CallPlace& place, const OperatorEntry& op,
                c10::ArrayRef<c10::IValue> arguments, const at::Tensor& tensor,
                Value value) override;
  std::vector<c10::IValue> call(const OperatorEntry& op,
                                std::vector<c10::IValue> arguments) override;
  std::vector<c10::IValue> read(const OperatorEntry& op,
                                std::vector<c10::IValue> arguments) override;
  void put_on_zeros(const OperatorEntry& op,
                    c10::function_ref<std::vector<c10::IValue>()> arguments) override;

  /// What is known of operators on shapes.
  KnownShapes& shapes() const { return *shapes_; }

 protected:
  /// Of the same values: what is known of shapes is known to both.
  StageResidence(const StageResidence&) = default;

  /// An operator is about to write its first argument.
  virtual void check_write(const OperatorEntry& /*op*/,
                           c10::ArrayRef<c10::IValue> /*arguments*/) const {}

 private:
  const std::shared_ptr<KnownShapes> shapes_;
};

}  // namespace oslo
