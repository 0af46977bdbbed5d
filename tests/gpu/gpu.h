#pragma once

#include <ATen/Context.h>
#include <gtest/gtest.h>

#include "mpu/world.h"

/// First in every test: without a GPU it is skipped, and counted as skipped.
#define OSLO_NEEDS_A_GPU() \
  if (!at::hasCUDA()) GTEST_SKIP() << "no CUDA device here"
