#pragma once

#include <ATen/core/ivalue.h>

#include <string>

#include "tests/support/counted_calls.h"

namespace oslo::test {

inline double flops_of_product(const at::RecordFunction& call) {
  const std::string name = call.name();
  const bool sum = name == "aten::addmm" || name == "aten::baddbmm";
  if (!sum && name != "aten::mm" && name != "aten::bmm") return 0;
  const size_t first = sum ? 1 : 0;
  const at::Tensor& a = call.inputs()[first].toTensor();
  const at::Tensor& b = call.inputs()[first + 1].toTensor();
  return 2.0 * static_cast<double>(a.numel()) * static_cast<double>(b.size(-1));
}

/// Floating-point operations of the products of matrices that this thread makes.
using CountedProducts = CountedCalls<flops_of_product>;

}  // namespace oslo::test
