// Every operator of the rule table, each of its operands cut along each of its dimensions, against
// one device; and docs/operators.md, which says what that moved. OSLO_UPDATE_GOLDEN=1 writes it.
// OSLO_TABLE_RANKS=7 compares only, over so many ranks: most cuts then leave some of them nothing.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <optional>

#include "parallelizers/placement/operators/operator_entry.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "tests/support/operator_chapters.h"
#include "tests/support/operator_examples.h"
#include "tests/support/operator_half.h"
#include "tests/support/operator_ways.h"

namespace {

using namespace operator_examples;

constexpr const char* kHead =
    R"(# Operators

<!-- Written by tests/operator_table_test, which measures it: OSLO_UPDATE_GOLDEN=1 -->

What every operator of the rule table does with cut operands, measured: each operand was cut along
each dimension over 2 ranks, unevenly, the others were whole. Results and gradients equal those of
one device; the last columns are what the group's ledger counted.

- `cut`: the operand and its dimension. Dimensions of one element are left out.
- `result`: how the first result lies. "cut alike": in the dimension in which the operand is cut.
- `forward`, `backward`: what was moved; `backward` speaks of gradients. "gathers" is what
  `parallel.plan()` reports, and [why](#gathers-and-why).
- A whole operand that goes with a cut one keeps its part of it; its gradient, put together again,
  is the all-gather in `backward`. In a model such operands are mostly cut or need no gradient.

How this comes about: [How it works](how-it-works.md#rules-are-dimension-maps). Numbers of elements
are those that rank 0 received in the example.

Operators that a program defines (`TORCH_LIBRARY`) have the rules that it
[registers](adding-a-rule.md#5-an-operator-of-your-own), and gather without one.
)";

std::filesystem::path document() {
  return std::filesystem::path(OSLO_SOURCE_DIR) / "docs/operators.md";
}

/// All cuts of all operators in one world. Rank 0 notes what it saw.
void measure(std::vector<Chapter>& chapters, int ranks) {
  oslo::run_as_threads(
      ranks,
      [&](oslo::World world) {
        const oslo::MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(ranks));
        const oslo::MeshPtr mesh = mpu.tensor_mesh();
        for (Chapter& chapter : chapters) {
          for (size_t i = 0; i < chapter.measured.size(); ++i) {
            const Prepared& op = chapter.measured[i].op;
            for (const Cutting& cutting : cuttings_of(op)) {
              try {
                Outcome outcome = with_cut(op, chapter.expected[i], cutting, mesh);
                if (world.rank() == 0) chapter.measured[i].outcomes.push_back(std::move(outcome));
              } catch (const std::exception& error) {
                // At once: where one rank fails alone, the next collective may end the program.
                ADD_FAILURE() << op.name << call_of(*op.example) << ", "
                              << op.operand_names[cutting.operand] << " cut on " << cutting.dim
                              << ", rank " << world.rank() << ": " << short_text(error);
              }
            }
          }
        }
      },
      std::chrono::seconds(60));
}

struct Compared {
  Prepared op;
  Expected expected;
};

/// Every plain cut of these operators, by all axes of a mesh of these sizes, in a world of their
/// own: where ranks part ways, what follows in it is not seen.
void expect_one_devices_ways(const std::vector<Compared>& all, const std::vector<int>& sizes,
                             Given how, const oslo::AxisUse& use = {}) {
  const int ranks = sizes.front() * (sizes.size() > 1 ? sizes.back() : 1);
  std::vector<std::string> calls(ranks);
  const auto body = [&](const oslo::World& world) {
    const oslo::MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(sizes.back()));
    std::vector<std::shared_ptr<oslo::Group>> axes;
    if (sizes.size() > 1) axes.push_back(mpu.data_group());
    axes.push_back(mpu.tensor_group());
    const auto mesh = std::make_shared<const oslo::Mesh>(axes);
    const auto compare = [&](const Compared& one, const Cutting& cutting) {
      const std::string what = one.op.name + call_of(*one.op.example) + ", " +
                               one.op.operand_names[cutting.operand] + " cut on " +
                               std::to_string(cutting.dim);
      for (int axis = 0; axis < mesh->axes(); ++axis) mesh->axis(axis)->ledger().clear();
      try {
        expect_one_devices(
            one.op, one.expected, cutting, mesh,
            std::vector<oslo::Placement>(mesh->axes(), oslo::Placement::shard(cutting.dim)), how,
            use);
      } catch (const std::exception& error) {
        oslo::fail(what, ", rank ", world.rank(), ": ", short_text(error));
      }
      calls[world.rank()] = calls_of(*mesh);
      world.barrier();
      for (int rank = 0; rank < world.size(); ++rank) {
        if (calls[rank] == calls[world.rank()]) continue;
        oslo::fail(what, ", ranks ", rank, " and ", world.rank(),
                   " took different ways: ", calls[rank], " against ", calls[world.rank()]);
      }
      world.barrier();
    };
    for (const Compared& one : all) {
      for (const Cutting& cutting : cuttings_of(one.op)) {
        if (cutting.blocks == 1 && cutting.unit == 1) compare(one, cutting);
      }
    }
  };
  try {
    oslo::run_as_threads(ranks, body, std::chrono::seconds(60));
  } catch (const std::exception& error) {
    ADD_FAILURE() << "on " << c10::IntArrayRef(std::vector<int64_t>(sizes.begin(), sizes.end()))
                  << " ranks" << (how == Given::placed ? ", " : ", marked, ") << short_text(error);
  }
}

void expect_one_devices_ways(const std::vector<int>& sizes, Given how) {
  const std::vector<Family> all = families();
  for (const Chapter& chapter : prepare(all)) {
    for (size_t i = 0; i < chapter.measured.size(); ++i) {
      expect_one_devices_ways({{chapter.measured[i].op, chapter.expected[i]}}, sizes, how);
    }
  }
}

/// Pointwise operators move nothing forward, except to write into a tensor that is whole.
void expect_pointwise(const Chapter& chapter) {
  for (const Measured& one : chapter.measured) {
    for (const Outcome& outcome : one.outcomes) {
      const bool written_whole = one.op.in_place && outcome.cutting.operand > 0;
      if (written_whole) continue;
      EXPECT_EQ(outcome.forward, "") << one.op.name;
      EXPECT_TRUE(outcome.reasons.empty()) << one.op.name;
      EXPECT_EQ(outcome.result, outcome.cutting.dim) << one.op.name;
    }
  }
}

void expect_justified(const Chapter& chapter) {
  std::map<const Example*, std::string> gathered;
  for (const Measured& one : chapter.measured) {
    std::string& reasons = gathered[one.op.example];
    for (const Outcome& outcome : one.outcomes) reasons += joined(outcome.reasons, "; ");
  }
  for (const auto& [example, reasons] : gathered) {
    EXPECT_EQ(example->why.empty(), reasons.empty())
        << joined(example->operators, " ") << call_of(*example) << " gathers for: \"" << reasons
        << "\"; its justification is \"" << example->why << "\"";
  }
}

std::string write(const std::vector<Chapter>& chapters) {
  std::string text = kHead, reasons;
  for (const Chapter& chapter : chapters) {
    text += "\n## " + chapter.family->title + "\n\n";
    if (chapter.family->kind == Kind::pointwise) {
      std::vector<std::string> listed;
      for (const Measured& one : chapter.measured) listed.push_back(one.op.name);
      text +=
          "Operators that work element by element stay cut as their operands are, and move nothing "
          "forward.\nIn-place ones write each rank's part; only into a tensor that is whole, what "
          "is cut is gathered.\n\nListed in the rule table, or named after one that is, and "
          "measured here:\n\n" +
          filled(quoted(listed)) + "\nSo tagged by LibTorch, in all their overloads:\n\n" +
          filled(quoted(tagged_pointwise()));
      continue;
    }
    text += filled(chapter.family->text) + "\n" + table_of(chapter.measured);
  }
  std::vector<Measured> all;
  for (const Chapter& chapter : chapters) {
    if (chapter.family->kind == Kind::pointwise) continue;
    all.insert(all.end(), chapter.measured.begin(), chapter.measured.end());
  }
  return text + "\n## Gathers, and why\n\n" + reasons_of(all);
}

TEST(OperatorTable, EveryRuleHasAnExample) {
  std::set<std::string> shown;
  for (const Family& family : families()) {
    for (const Example& example : family.examples) {
      for (const std::string& name : example.operators) shown.insert("aten::" + name);
    }
  }
  for (const auto& [name, rule] : oslo::RuleTable::instance().rules()) {
    EXPECT_EQ(shown.count(name), 1u)
        << name << " has no example in tests/support/operator_examples";
  }
}

// Both axes cut one dimension, unevenly or into nothing (five elements on 3 x 2 ranks: 1+1, 1+1,
// 1+0): what the second axis does differs between the ranks of the first, and all must take the
// same way nevertheless.
TEST(OperatorTable, NestedCutsGiveOneDevicesResultsByOneWay) {
  expect_one_devices_ways({3, 2}, Given::placed);
}

// Over eight ranks some hold nothing of any operand: what they do, backward and twice backward,
// must be what the others do. Also with one gradient and no optional operand: where these lead may
// hide that a part leads nowhere.
TEST(OperatorTable, RanksWithoutElementsTakeTheOthersWay) {
  const std::vector<Family> all = families();
  for (const Chapter& chapter : prepare(all)) {
    std::vector<Compared> ways;
    for (const Measured& one : chapter.measured) {
      const auto add = [&](const Prepared& op) {
        const bool refused = op.example->check == Check::refused;
        try {
          ways.push_back({op, refused ? Expected() : twice_on_one_device(op)});
        } catch (const std::exception&) {  // does not go without an operand
        }
      };
      add(one.op);
      const bool several = one.op.operands.size() > 1 && one.op.operands[0].requires_grad();
      if (several) add(one.op.bare().recording(0));
    }
    expect_one_devices_ways(ways, {8}, Given::placed);
  }
}

/// A call of a `_foreach_` operator on these lists, which are parameters: an argument of each type
/// that its schema names. None where it takes something else.
std::optional<Example> example_of_lists(const std::string& name, const c10::FunctionSchema& schema,
                                        double number) {
  std::vector<Argument> arguments;
  for (const c10::Argument& argument : schema.arguments()) {
    const auto kind = argument.type()->kind();
    if (argument.type()->isSubtypeOf(*c10::ListType::ofTensors())) {
      const bool records = schema.name().back() != '_';
      arguments.emplace_back(list({fraction({5, 7}).detach().set_requires_grad(records),
                                   fraction({6}).detach().set_requires_grad(records)}));
    } else if (*argument.type() == *c10::NumberType::get()) {
      arguments.emplace_back(number);
    } else if (kind == c10::TypeKind::TensorType) {
      if (schema.name().find("_addc") != std::string::npos) return std::nullopt;  // packed numbers
      arguments.emplace_back(at::full({}, 0.5, at::kDouble));
    } else if (kind == c10::TypeKind::ListType) {
      arguments.emplace_back(c10::IValue(c10::List<c10::Scalar>({0.5, 0.25})));
    } else if (argument.default_value()) {
      arguments.emplace_back(*argument.default_value());
    } else {
      return std::nullopt;
    }
  }
  return Example(name.c_str(), std::move(arguments));
}

// A list is so many calls; what its operator asks of the tensors' sizes (an infinite norm: whether
// there is an element) it must ask of the whole's. Eight ranks leave some of them nothing.
TEST(OperatorTable, EveryOperatorOnListsTakesPartsWithoutElements) {
  number_type() = at::kDouble;
  at::manual_seed(7);
  std::vector<std::unique_ptr<Example>> examples;
  std::vector<Compared> called;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto handle = c10::Dispatcher::singleton().findOp(name);
    if (name.name.rfind("aten::_foreach_", 0) != 0 || !handle->hasSchema()) continue;
    if (name.overload_name.find("out") != std::string::npos) continue;
    const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
    for (const double number : {2.0, std::numeric_limits<double>::infinity()}) {
      auto example = example_of_lists(name.name.substr(6) + overload, handle->schema(), number);
      if (!example) continue;
      examples.push_back(std::make_unique<Example>(std::move(*example)));
      try {
        const Prepared op(*examples.back(), examples.back()->operators[0]);
        called.push_back({op, on_one_device(op)});
      } catch (const std::exception& error) {
        ADD_FAILURE() << name << " on one device: " << short_text(error);
      }
    }
  }
  EXPECT_GT(called.size(), 100u);
  expect_one_devices_ways(called, {8}, Given::marked);
}

// What a plan says of a weight is heard or refused with the weight's name, whatever its cut is:
// also pieces that are no whole groups of a convolution.
TEST(OperatorTable, PlannedWeightsGiveOneDevicesResults) {
  using Result = oslo::AxisUse::Result;
  const std::vector<Family> all = families();
  size_t products = 0;
  for (const Chapter& chapter : prepare(all)) {
    for (size_t i = 0; i < chapter.measured.size(); ++i) {
      if (oslo::entry_of(chapter.measured[i].op.handle).use == oslo::UseKind::none) continue;
      ++products;
      for (const Result result : {Result::reduce, Result::scatter, Result::split}) {
        for (const int ranks : {2, 3}) {
          expect_one_devices_ways({{chapter.measured[i].op, chapter.expected[i]}}, {ranks},
                                  Given::planned, {result, 0});
        }
      }
    }
  }
  EXPECT_GT(products, 10);
}

// A parameter's sizes are those of its part: whatever reads them must not take them for the
// whole's.
TEST(OperatorTable, MarkedParametersGiveOneDevicesResults) {
  expect_one_devices_ways({8}, Given::marked);  // of most nothing, on some rank
}
TEST(OperatorTable, NestedMarkedParametersGiveOneDevicesResults) {
  expect_one_devices_ways({3, 2}, Given::marked);
}

// Kernels for other types refuse tensors without elements that those for double take; over six
// ranks most cuts leave some of them such parts.
TEST(OperatorTable, NoKernelRefusesAPartInAnotherType) {
  const std::vector<Family> all = families(at::kBFloat16);
  std::vector<Chapter> chapters = prepare(all);
  measure(chapters, 6);
  number_type() = at::kDouble;
}

/// The cuts under which an operator adds something up over the ranks, forward or backward: they
/// move something, and do not gather.
std::vector<Cutting> summing_cuts(const Measured& one) {
  std::vector<Cutting> cuts;
  for (const Outcome& outcome : one.outcomes) {
    const bool plain = outcome.cutting.blocks == 1 && outcome.cutting.unit == 1;
    const bool sums = outcome.backward.find("all-reduce") != std::string::npos ||
                      (!outcome.forward.empty() && outcome.reasons.empty());
    if (plain && sums) cuts.push_back(outcome.cutting);
  }
  return cuts;
}

/// Sums of products: each rank's is rounded before the ranks' are added up (how-it-works.md, half
/// precision).
bool adds_products(const Family& family, const std::string& name) {
  static const std::set<std::string> others{"inner", "linalg_multi_dot", "grid_sampler",
                                            "grid_sampler_2d"};
  return family.title == products().title || family.title == convolutions().title ||
         family.title == recurrent().title || others.count(name) > 0;
}

std::vector<HalfCase> half_cases(const std::vector<Chapter>& chapters) {
  std::vector<HalfCase> cases;
  for (const Chapter& chapter : chapters) {
    for (const Measured& one : chapter.measured) {
      if (one.op.example->check != Check::values) continue;
      const bool product = adds_products(*chapter.family, one.op.name);
      for (const Cutting& cutting : summing_cuts(one)) {
        for (const at::ScalarType type : {at::kHalf, at::kBFloat16}) {
          for (size_t kind = 0; kind < kNumberNames.size(); ++kind) {
            const auto numbers = static_cast<Numbers>(kind);
            // A cell's products go into curves, which know no bound: a rounding of a large one
            // opens or closes a gate. Of equal numbers there is no deviation to divide by.
            const bool cell = chapter.family->title == recurrent().title;
            const bool unknown = cell || one.op.example->note == "eps 0";
            if (numbers == Numbers::cancelling && unknown) continue;
            if (numbers == Numbers::large && cell) continue;
            auto test = half_case(one.op, cutting, numbers, type, product);
            if (!test) continue;
            test->cell = cell;
            test->roundings = cell ? 12 : product ? 4 : 2;  // a cell's four gates add up theirs
            cases.push_back(std::move(*test));
          }
        }
      }
    }
  }
  return cases;
}

// One device adds half precision up in float and rounds once. Ranks that round before, or on the
// way, lose what the type is short of: digits, or the range.
TEST(OperatorTable, HalfPrecisionIsAddedUpAsOnOneDevice) {
  const std::vector<Family> all = families();
  std::vector<Chapter> chapters = prepare(all);
  measure(chapters, 2);
  const std::vector<HalfCase> cases = half_cases(chapters);
  EXPECT_GT(cases.size(), 1000u);
  oslo::run_as_threads(
      2,
      [&](oslo::World world) {
        const oslo::MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(2));
        for (const HalfCase& test : cases) {
          try {
            const std::string faults = half_faults(test, mpu.tensor_mesh());
            if (world.rank() == 0 && !faults.empty()) ADD_FAILURE() << test.text << ": " << faults;
          } catch (const std::exception& error) {
            ADD_FAILURE() << test.text << ", rank " << world.rank() << ": " << short_text(error);
          }
        }
      },
      std::chrono::seconds(60));
}

TEST(OperatorTable, EveryCutGivesOneDevicesResultsAndTheDocumentSaysWhatItMoves) {
  const std::vector<Family> all = families();
  std::vector<Chapter> chapters = prepare(all);
  const char* asked = std::getenv("OSLO_TABLE_RANKS");
  const int ranks = asked == nullptr ? 2 : std::atoi(asked);
  measure(chapters, ranks);
  if (ranks != 2) return;
  for (const Chapter& chapter : chapters) {
    if (chapter.family->kind == Kind::pointwise) {
      expect_pointwise(chapter);
    } else {
      expect_justified(chapter);
    }
  }
  const std::string text = write(chapters);
  const char* update = std::getenv("OSLO_UPDATE_GOLDEN");
  if (update != nullptr && std::string(update) == "1") {
    std::ofstream(document(), std::ios::trunc) << text;
    return;
  }
  std::ifstream in(document());
  std::stringstream recorded;
  recorded << in.rdbuf();
  EXPECT_EQ(recorded.str(), text)
      << "docs/operators.md is not what was measured; OSLO_UPDATE_GOLDEN=1 writes it anew";
}

}  // namespace
