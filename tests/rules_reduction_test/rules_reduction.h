#pragma once

#include <gtest/gtest.h>

namespace rule_case {

/// By number of ranks. The instantiation is in reductions.cpp.
class RulesReduction : public testing::TestWithParam<int> {};

}  // namespace rule_case
