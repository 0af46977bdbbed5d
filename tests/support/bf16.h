#pragma once

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "parallelizers/placement/carrier/access.h"

// bf16 on several ranks beside bf16 on one device.
namespace oslo::test {

/// bf16 autocast on the CPU for this thread, as users switch it on around a forward.
class Autocast {
 public:
  Autocast() {
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~Autocast() {
    at::autocast::set_autocast_cache_enabled(true);
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;
};

/// How far a result of several ranks in bf16 may be from one device's, in norm. bf16 rounds each
/// number to 8 bits: by up to u = 2^-8 of it. What all roundings of a model come to depends on the
/// model (a logarithm of small magnitudes, a maximum that a rounding decides), on the order in
/// which kernels add, and so on the CPU. So it is measured: `rounded` is one device's in bf16,
/// `exact` its result in fp32. Where one device rounds a sum once, n ranks round n partial sums and
/// the n - 1 sums of those: 2n - 1 roundings in place of one. Those of one device and of the ranks
/// are independent, and so add up as squares: sqrt(2n) of one device's. Terms that cancel each
/// other are larger than what they come to; twice as much is allowed for that. u itself is for
/// results that one device need not round. Not for single numbers: one rounding may be none by
/// chance.
inline double bf16_tolerance(const at::Tensor& rounded, const at::Tensor& exact, int ranks) {
  constexpr double u = 1.0 / 256;
  return 2 * std::sqrt(2.0 * ranks) * (rounded - exact).norm().item<double>() +
         u * exact.norm().item<double>();
}

/// The dtype of `rounded`, and its numbers but for rounding and a fraction `jump` of their norm.
/// `actual` may be a placed tensor; collective.
inline void expect_rounded_alike(const at::Tensor& actual, const at::Tensor& rounded,
                                 const at::Tensor& exact, int ranks, const std::string& what,
                                 double jump = 0) {
  EXPECT_EQ(actual.scalar_type(), rounded.scalar_type()) << what;
  const auto wide = [](const at::Tensor& tensor) {
    return full_tensor(tensor).detach().to(at::kFloat);
  };
  const at::Tensor many = wide(actual), one = wide(rounded), whole = wide(exact);
  ASSERT_EQ(many.sizes(), one.sizes()) << what;
  ASSERT_EQ(many.sizes(), whole.sizes()) << what;
  EXPECT_LE((many - one).norm().item<double>(),
            bf16_tolerance(one, whole, ranks) + jump * whole.norm().item<double>())
      << what;
}

}  // namespace oslo::test
