#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

namespace oslo::test {

/// What a program in plain LibTorch does by hand to scale its loss.
class ScaledByHand {
 public:
  ScaledByHand(double scale, int64_t interval) : scale_(scale), interval_(interval) {}

  double scale() const { return scale_; }

  /// Whether the gradients are finite, which are unscaled.
  bool unscale(const std::vector<torch::Tensor>& parameters) {
    const torch::NoGradGuard no_grad;
    bool finite = true;
    for (const torch::Tensor& parameter : parameters) {
      if (!parameter.grad().defined()) continue;
      finite = finite && torch::isfinite(parameter.grad()).all().item<bool>();
      parameter.grad().div_(scale_);
    }
    return finite;
  }

  void update(bool finite) {
    good_ = finite ? good_ + 1 : 0;
    if (!finite) scale_ *= 0.5;
    if (good_ < interval_) return;
    scale_ *= 2;
    good_ = 0;
  }

 private:
  double scale_;
  int64_t interval_;
  int64_t good_ = 0;
};

}  // namespace oslo::test
