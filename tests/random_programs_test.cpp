// Random programs of a few operators, on cut values against one device: every result and every
// gradient. OSLO_RANDOM_PROGRAMS says how many a mesh, OSLO_RANDOM_SEED where to begin.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <optional>

#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/operators/planned_results.h"
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

/// A leaf as this rank has it: an ordinary tensor, a placed one, or a parameter of a plan.
Tensor placed_leaf(const random_program::Leaf& leaf, const Tensor& whole,
                   const oslo::MeshPtr& mesh) {
  if (leaf.placements.empty()) return whole;
  if (!leaf.uses) return oslo::distribute(whole, mesh, leaf.placements);
  oslo::mark_parameter(
      whole, std::make_shared<oslo::Layout>(make_layout(mesh, leaf.placements, leaf.whole.sizes())),
      "leaf");
  set_weight_uses(whole, leaf.uses);
  return whole.t().t();  // a parameter tells the sizes of its part
}

Tensors placed_leaves(const Program& program, const Tensors& leaves, const oslo::MeshPtr& mesh) {
  Tensors placed;
  for (size_t i = 0; i < leaves.size(); ++i) {
    placed.push_back(placed_leaf(program.leaves[i], leaves[i], mesh));
  }
  return placed;
}

/// How the results of a program lie.
std::vector<std::string> layouts_of(const Program& program, const Tensors& values) {
  std::vector<std::string> layouts;
  for (size_t i = program.leaves.size(); i < values.size(); ++i) {
    const oslo::LayoutPtr layout = oslo::layout(values[i]);
    layouts.push_back(layout ? layout->to_string() : "whole");
  }
  return layouts;
}

/// Whether results lie otherwise than without the plans of weights. Collective.
bool heeds_plans(Program program, const Tensors& values, const oslo::MeshPtr& mesh) {
  const auto plans = [](const random_program::Leaf& leaf) { return leaf.uses != nullptr; };
  if (std::none_of(program.leaves.begin(), program.leaves.end(), plans)) return false;
  for (random_program::Leaf& leaf : program.leaves) leaf.uses = nullptr;
  Tensors leaves;
  for (const random_program::Leaf& leaf : program.leaves) leaves.push_back(leaf.whole);
  const Tensors without = random_program::run(program, placed_leaves(program, leaves, mesh));
  return layouts_of(program, values) != layouts_of(program, without);
}

/// What the plans of weights came to, over all ranks.
struct Plans {
  std::atomic<int64_t> heeded = 0;
  /// They ask for a dimension that a result does not have, which every rank says.
  std::atomic<int64_t> refused = 0;
};

void run_on(const Program& program, const oslo::MeshPtr& mesh, const Expected& expected,
            Plans& plans) {
  const Tensors leaves = leaves_of(program);
  const Tensors values = random_program::run(program, placed_leaves(program, leaves, mesh));
  if (heeds_plans(program, values, mesh)) ++plans.heeded;
  for (size_t i = 0; i < values.size(); ++i) {
    compare(oslo::full_tensor(values[i]).detach(), expected.values[i], c10::str("v", i));
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    const Tensor own = leaves[i].grad();
    compare(own.defined() ? oslo::full_tensor(own) : own, expected.gradients[i],
            c10::str("the gradient of v", i));
  }
}

/// What goes wrong with the first of the programs that fails, and which.
struct Failure {
  size_t program;
  std::string what;
};

std::optional<Failure> first_failure(const std::vector<int>& axes,
                                     const std::vector<Program>& programs, Plans& plans) {
  std::vector<Expected> expected;
  for (const Program& program : programs) expected.push_back(on_one_device(program));
  std::mutex mutex;
  std::optional<Failure> failure;
  try {
    rule_case::on_ranks(axes, [&](const oslo::MeshPtr& mesh) {
      for (size_t i = 0; i < programs.size(); ++i) {
        try {
          run_on(programs[i], mesh, expected[i], plans);
        } catch (const oslo::PlanMismatch&) {
          ++plans.refused;
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
    Plans plans;
    const auto failure = first_failure(axes, {shorter}, plans);
    if (!failure) continue;
    program = shorter;
    what = failure->what;
  }
  return program.to_string() + what;
}

class RandomPrograms : public testing::TestWithParam<std::vector<int>> {};

TEST_P(RandomPrograms, EqualOneDevice) {
  const std::vector<int>& axes = GetParam();
  // Three axes take many more ranks, and as many fewer programs.
  const int64_t count = from_environment("OSLO_RANDOM_PROGRAMS", 3200) / (axes.size() > 2 ? 4 : 1);
  const auto seed = static_cast<uint64_t>(from_environment("OSLO_RANDOM_SEED", 1));
  constexpr int64_t kAtOnce = 100;
  Plans plans;
  for (int64_t done = 0; done < count; done += kAtOnce) {
    std::vector<Program> programs;
    for (int64_t i = done; i < std::min(count, done + kAtOnce); ++i) {
      programs.push_back(Generator(seed + static_cast<uint64_t>(i), axes.size()).make());
    }
    const auto failure = first_failure(axes, programs, plans);
    if (!failure) continue;
    FAIL() << "a program fails on " << c10::str(c10::ArrayRef<int>(axes)) << " ranks:\n"
           << shrunk(axes, programs[failure->program], failure->what);
  }
  const int64_t ranks = c10::multiply_integers(axes);
  EXPECT_EQ(plans.refused % ranks, 0) << "not every rank refused";
  EXPECT_LT(plans.refused, ranks * count / 10);
  EXPECT_GE(plans.heeded, ranks * count / 50);
}

INSTANTIATE_TEST_SUITE_P(Meshes, RandomPrograms,
                         testing::Values(std::vector<int>{2}, std::vector<int>{3},
                                         std::vector<int>{2, 2}, std::vector<int>{2, 3, 2}),
                         [](const auto& info) {
                           std::string name = "ranks";
                           for (const int size : info.param) name += "_" + std::to_string(size);
                           return name;
                         });

}  // namespace
