// Random programs of a few operators, on cut values against one device: every result and every
// gradient. OSLO_RANDOM_PROGRAMS says how many a mesh, OSLO_RANDOM_SEED where to begin.
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>

#include "tests/support/random_program.h"
#include "tests/support/rule_case.h"

namespace {

using random_program::Generator;
using random_program::Program;
using random_program::Tensor;
using random_program::Tensors;

int64_t from_environment(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

Tensors leaves_of(const Program& program) {
  Tensors leaves;
  for (const auto& leaf : program.leaves) {
    leaves.push_back(leaf.whole.clone().set_requires_grad(true));
  }
  return leaves;
}

struct Expected {
  Tensors values, gradients;
};

Expected on_one_device(const Program& program) {
  const Tensors leaves = leaves_of(program);
  Expected expected{random_program::run(program, leaves), {}};
  for (Tensor& value : expected.values) value = value.detach();
  expected.gradients = rule_case::gradients_of(leaves);
  return expected;
}

void compare(const Tensor& actual, const Tensor& expected, const std::string& what) {
  if (!actual.defined() || !expected.defined()) {
    const Tensor& other = actual.defined() ? actual : expected;
    const bool nothing =
        !other.defined() || other.numel() == 0 || other.abs().max().item<double>() == 0;
    OSLO_CHECK(nothing, what, " is undefined on one side only");
    return;
  }
  OSLO_CHECK(actual.sizes() == expected.sizes(), what, " has shape ", actual.sizes(), ", not ",
             expected.sizes());
  // fp64 and results below 1e3: what differs is the order of sums.
  OSLO_CHECK(at::allclose(actual, expected, 1e-9, 1e-9, /*equal_nan=*/true), what, " differs:\n",
             actual, "\n", expected);
}

void run_on(const Program& program, const oslo::MeshPtr& mesh, const Expected& expected) {
  const Tensors leaves = leaves_of(program);
  Tensors placed;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const auto& placements = program.leaves[i].placements;
    placed.push_back(placements.empty() ? leaves[i]
                                        : oslo::distribute(leaves[i], mesh, placements));
  }
  const Tensors values = random_program::run(program, placed);
  for (size_t i = 0; i < values.size(); ++i) {
    compare(oslo::full_tensor(values[i]).detach(), expected.values[i], c10::str("v", i));
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    compare(leaves[i].grad(), expected.gradients[i], c10::str("the gradient of v", i));
  }
}

/// What goes wrong with the first of the programs that fails, and which.
struct Failure {
  size_t program;
  std::string what;
};

std::optional<Failure> first_failure(const std::vector<int>& axes,
                                     const std::vector<Program>& programs) {
  std::vector<Expected> expected;
  for (const Program& program : programs) expected.push_back(on_one_device(program));
  std::mutex mutex;
  std::optional<Failure> failure;
  try {
    rule_case::on_ranks(axes, [&](const oslo::MeshPtr& mesh) {
      for (size_t i = 0; i < programs.size(); ++i) {
        try {
          run_on(programs[i], mesh, expected[i]);
        } catch (const std::exception& error) {
          const std::lock_guard<std::mutex> lock(mutex);
          if (!failure) failure = Failure{i, error.what()};
          throw;
        }
      }
    });
  } catch (const std::exception& error) {
    if (!failure) failure = Failure{0, error.what()};
  }
  return failure;
}

bool used_later(const Program& program, size_t value) {
  for (const auto& step : program.steps) {
    for (const size_t operand : step.operands) {
      if (operand == value) return true;
    }
  }
  return false;
}

/// Without step `index`, whose result nobody uses; later positions move down.
Program without(Program program, size_t index) {
  const size_t value = program.leaves.size() + index;
  program.steps.erase(program.steps.begin() + static_cast<int64_t>(index));
  for (auto& step : program.steps) {
    for (size_t& operand : step.operands) operand -= operand > value ? 1 : 0;
  }
  return program;
}

/// The shortest program that still fails, dropping one unused step at a time.
std::string shrunk(const std::vector<int>& axes, Program program, std::string what) {
  for (size_t i = program.steps.size(); i-- > 0;) {
    if (used_later(program, program.leaves.size() + i)) continue;
    const Program shorter = without(program, i);
    const auto failure = first_failure(axes, {shorter});
    if (!failure) continue;
    program = shorter;
    what = failure->what;
  }
  return program.to_string() + what;
}

class RandomPrograms : public testing::TestWithParam<std::vector<int>> {};

TEST_P(RandomPrograms, EqualOneDevice) {
  const std::vector<int>& axes = GetParam();
  const int64_t count = from_environment("OSLO_RANDOM_PROGRAMS", 3400);
  const auto seed = static_cast<uint64_t>(from_environment("OSLO_RANDOM_SEED", 1));
  constexpr int64_t kAtOnce = 100;
  for (int64_t done = 0; done < count; done += kAtOnce) {
    std::vector<Program> programs;
    for (int64_t i = done; i < std::min(count, done + kAtOnce); ++i) {
      programs.push_back(Generator(seed + static_cast<uint64_t>(i), axes.size()).make());
    }
    const auto failure = first_failure(axes, programs);
    if (!failure) continue;
    FAIL() << "a program fails on " << c10::str(c10::ArrayRef<int>(axes)) << " ranks:\n"
           << shrunk(axes, programs[failure->program], failure->what);
  }
}

INSTANTIATE_TEST_SUITE_P(Meshes, RandomPrograms,
                         testing::Values(std::vector<int>{2}, std::vector<int>{3},
                                         std::vector<int>{2, 2}),
                         [](const auto& info) {
                           std::string name = "ranks";
                           for (const int size : info.param) name += "_" + std::to_string(size);
                           return name;
                         });

}  // namespace
