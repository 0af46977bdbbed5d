#pragma once

#include <gmock/gmock.h>

#include <tuple>

#include "tests/support/error_of.h"
#include "tests/support/training_device.h"

// Whole programs in the habits of C++ sources that people publish: what they compute on cut models
// is what they compute on one device.
namespace programs {

using training::classes;
using training::Device;
using training::Mesh;
using training::numbers;
using training::Replica;
using training::Tensor;
using training::Tensors;

struct NamedProgram {
  const char* name;
  void (*run)(Device&);
};

class TrainingProgram : public testing::TestWithParam<std::tuple<NamedProgram, Mesh>> {};

inline std::string case_name(const testing::TestParamInfo<TrainingProgram::ParamType>& info) {
  return std::string(std::get<0>(info.param).name) + "_" + std::get<1>(info.param).name();
}

/// A world of one rank is initialized too: what `initialize` does to the module tree shows there.
inline const std::vector<Mesh> kMeshes{{1, 1}, {2, 1}, {3, 1}, {2, 2}, {1, 2, 3}, {2, 2, 3}};

}  // namespace programs

/// TRAINING_PROGRAM(function) makes a test of it on every mesh.
#define TRAINING_PROGRAM(function)                                                              \
  INSTANTIATE_TEST_SUITE_P(function, TrainingProgram,                                           \
                           testing::Combine(testing::Values(NamedProgram{#function, function}), \
                                            testing::ValuesIn(kMeshes)),                        \
                           case_name)
