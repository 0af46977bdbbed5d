#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "checkpoint/formats/tensors/state_dict.h"

namespace oslo::checkpoint_test {

/// Distinct bits of every dtype that both file formats take, and of those `beside` them.
inline StateDict every_dtype(const std::vector<at::ScalarType>& beside = {}) {
  std::vector<at::ScalarType> dtypes = {at::kDouble,
                                        at::kFloat,
                                        at::kHalf,
                                        at::kBFloat16,
                                        at::kFloat8_e4m3fn,
                                        at::kFloat8_e5m2,
                                        at::kFloat8_e4m3fnuz,
                                        at::kFloat8_e5m2fnuz,
                                        at::kFloat8_e8m0fnu,
                                        at::kLong,
                                        at::kInt,
                                        at::kShort,
                                        at::kChar,
                                        at::kByte,
                                        at::kBool,
                                        at::kUInt16,
                                        at::kUInt32,
                                        at::kUInt64,
                                        at::kComplexFloat};
  dtypes.insert(dtypes.end(), beside.begin(), beside.end());
  StateDict state;
  for (const auto dtype : dtypes) {
    at::Tensor bits = at::arange(3 * static_cast<int64_t>(c10::elementSize(dtype)), at::kByte);
    if (dtype == at::kBool) bits = bits.remainder(2);
    state.insert(c10::toString(dtype), bits.view(dtype));
  }
  return state;
}

inline void expect_bit_for_bit(const StateDict& back, const StateDict& state) {
  ASSERT_EQ(back.size(), state.size());
  for (const auto& [name, tensor] : state) {
    ASSERT_EQ(back.at(name).scalar_type(), tensor.scalar_type());
    ASSERT_EQ(back.at(name).sizes(), tensor.sizes());
    EXPECT_EQ(std::memcmp(back.at(name).const_data_ptr(), tensor.const_data_ptr(), tensor.nbytes()),
              0)
        << name;
  }
}

}  // namespace oslo::checkpoint_test
