#pragma once

#include <memory>
#include <string>
#include <utility>

#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/elsewhere/ordinary_gradients.h"
#include "parallelizers/placement/elsewhere/stage_residence.h"
#include "parallelizers/plan/dry/imagined_content.h"

namespace oslo {

/// Values in a run on shapes: no rank has any, and what the forward reads is imagined.
class DryResidence final : public StageResidence {
 public:
  explicit DryResidence(at::Device device)
      : StageResidence(StageRanks::nowhere(), nullptr, device) {}

  /// An ordinary tensor's shape leads to the tensor: the forward may ask for its gradient.
  Value operand(const CallPlace& place, const OperatorEntry& op,
                c10::ArrayRef<c10::IValue> arguments, const at::Tensor& tensor,
                Value value) override {
    const bool ordinary = !value.layout && tensor.requires_grad();
    value = StageResidence::operand(place, op, arguments, tensor, std::move(value));
    if (!ordinary) return value;
    const auto layout = std::make_shared<Layout>(context_of(arguments), place.stages);
    value.local = gradients_.lead(tensor, std::move(value.local), layout);
    return value;
  }

  ContentProvider* imagined() const override { return content_.get(); }
  ImaginedContent& content() const { return *content_; }
  OrdinaryGradients& gradients() { return gradients_; }

  /// The run is over. What is left of its values says `why` it cannot be used.
  void end(std::string why) { ended_ = std::move(why); }
  std::string ended() const override { return ended_; }

 private:
  const std::unique_ptr<ImaginedContent> content_ = std::make_unique<ImaginedContent>();
  OrdinaryGradients gradients_;
  std::string ended_;
};

}  // namespace oslo
