#pragma once

#include <ATen/Context.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "mpu/world/world.h"

namespace oslo::test {

inline int gpus() {
  return at::hasCUDA() ? c10::impl::VirtualGuardImpl(c10::kCUDA).deviceCount() : 0;
}

}  // namespace oslo::test

/// First in every test: without a GPU it is skipped, and counted as skipped.
#define OSLO_NEEDS_A_GPU() \
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device here"
#define OSLO_NEEDS_GPUS(count)      \
  if (oslo::test::gpus() < (count)) \
  GTEST_SKIP() << "needs " << (count) << " CUDA devices, and here are " << oslo::test::gpus()
