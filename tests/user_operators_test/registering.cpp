// What register_rule refuses: by name, with what was seen and what to do.
#include "parallelizers/placement/engine/register_rule.h"

#include <mutex>

#include "parallelizers/placement/operators/user_rule_registry.h"
#include "tests/support/error_of.h"
#include "tests/support/placed_values.h"
#include "tests/user_operators_test/library.h"

namespace {

using oslo::register_rule;
using oslo::test::error_of;
using oslo::test::expect_contains;

constexpr const char* kNever = "user_operators::never_called";

void refuses(const std::string& name, const std::string& map, const std::vector<std::string>& told,
             const std::string& whole = "") {
  SCOPED_TRACE(name + " " + map);
  expect_contains(error_of([&] { register_rule(name, map, whole); }), told);
}

TEST(RegisterRule, NeedsAnOperator) {
  refuses("user_operators::prodct", "K -> K",
          {"user_operators::prodct", "no such operator", "user_operators::product"});
  refuses("user_operators::product.Tensor", "K -> K", {"defined with that name"});
  refuses("nobodys::op", "K -> K", {"nobodys::op", "TORCH_LIBRARY"});
  refuses("nobodys", "K -> K", {"\"nobodys\"", "no such operator"});
}

TEST(RegisterRule, OnceAnOperatorThatHasNone) {
  refuses("user_operators::product", "..K, KN -> ..N", {"a rule already", "..K, KN -> ..N"});
  refuses("user_operators::sums_from_behind", "K -> K", {"a rule already", "a function"});
  refuses("aten::mm", "MK, KN -> MN", {"aten::mm", "the library has a rule"});
  refuses("aten::gelu", ".. -> ..", {"aten::gelu", "pointwise"});
  refuses("user_operators::square", ".. -> ..", {"pointwise"});
  expect_contains(error_of([] { register_rule(kNever, std::function<void(oslo::Call&)>()); }),
                  {kNever, "empty"});
}

TEST(RegisterRule, RanksCompareWhatWasRegistered) {
  expect_contains(oslo::user_rules_text(),
                  {"rule of user_operators::product: \"..K, KN -> ..N\"\n",
                   "rule of user_operators::peaks: \"..K -> ..K, ..\", whole \"K\"\n",
                   "rule of user_operators::sums_from_behind: a function\n"});
}

TEST(RegisterRule, BeforeTheOperatorIsUsed) {
  placed_values::on_ranks(3, [](const oslo::MPU& mpu) {
    const auto weight = placed_values::placed(placed_values::numbers({7, 5}), mpu, 1);
    user_operators::unruled_product(placed_values::numbers({2, 7}), weight);
  });
  refuses("user_operators::unruled_product", "..K, KN -> ..N",
          {"used the operator already", "before initialize"});
}

TEST(RegisterRule, TheMapFitsTheSchema) {
  refuses(kNever, "K, K -> K", {"2 operands, the operator 1", "Tensor x, int n"});
  refuses(kNever, "K -> K, K", {"2 results, the operator 1"});
  refuses("user_operators::writes", "K -> K", {"writes to an argument", "oslo::Call"});
  refuses("user_operators::writes_out", "K, K -> K", {"writes to an argument"});
  refuses("user_operators::views", "K -> K", {"shares the memory", "oslo::Call"});
  refuses("user_operators::counts", "K -> K", {"returns int"});
  refuses("user_operators::draws", "K -> K", {"random numbers"});
}

TEST(RegisterRule, TheMapIsOne) {
  refuses(kNever, "K", {"\"->\""});
  refuses(kNever, "K -> K -> K", {"\"->\""});
  refuses(kNever, "K -> N", {"'N' has N, which no operand has"});
  refuses(kNever, "K -> ..K", {"\"..\", and no operand has"});
  refuses(kNever, "KK -> K", {"K twice"});
  refuses(kNever, "..K.. -> ..K", {"a dot too many"});
  refuses(kNever, ".K -> K", {"a dot too many or too few"});
  refuses(kNever, "K1 -> K", {"'1' in 'K1' is no letter"});
  refuses(kNever, "K -> K", {"N shall be whole, and no operand has it"}, "N");
  refuses(kNever, "K -> K", {"\"..\" shall be whole"}, "..");
}

/// The message on each of three ranks.
std::string error_on_ranks(const std::function<void(const oslo::MPU&)>& body) {
  std::string errors;
  std::mutex mutex;
  placed_values::on_ranks(3, [&](const oslo::MPU& mpu) {
    const std::string error = error_of([&] { body(mpu); });
    const std::lock_guard<std::mutex> lock(mutex);
    errors += error + "\n";
    EXPECT_EQ(mpu.tensor_group()->ledger().total("all_gather").calls, 0);
  });
  return errors;
}

TEST(RegisterRule, ACallThatDoesNotFitItsMapIsRefusedOnAllRanksBeforeAnythingMoves) {
  using placed_values::numbers, placed_values::placed;
  const std::string dims = error_on_ranks([](const oslo::MPU& mpu) {
    user_operators::product(numbers({2, 7}), placed(numbers({7, 5, 1}), mpu, 1));
  });
  expect_contains(dims, {"..K, KN -> ..N", "tensor 1", "'KN'", "it has 3, of sizes [7, 5, 1]"});
  const std::string sizes = error_on_ranks([](const oslo::MPU& mpu) {
    user_operators::product(numbers({2, 6}), placed(numbers({7, 5}), mpu, 1));
  });
  expect_contains(sizes, {"user_operators::product, by its registered rule", "6", "7"});
}

}  // namespace
