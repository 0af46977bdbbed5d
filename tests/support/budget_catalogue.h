#pragma once

#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>

#include <limits>
#include <string>

#include "tests/support/catalogue_entry.h"
#include "tests/support/counted_memory.h"

// An entry of the catalogue on one rank, within budgets of memory (acceptance A4).
namespace catalogue {

/// The most that steps hold; -1 where the budget is refused, with what it says in `refusal`.
inline int64_t peak_of_steps(const Entry& entry, const std::string& config, bool example,
                             std::string& refusal) {
  int64_t most = -1;
  oslo::run_as_threads(1, [&](oslo::World world) {
    at::set_num_threads(1);
    oslo::test::CountedMemory memory;
    torch::manual_seed(11);
    const auto model = entry.make();
    const Batch batch = entry.batch(0);
    oslo::InitializeOptions how;
    how.world = world;
    if (example) how.example_inputs = [&] { entry.forward(*model, batch.inputs); };
    try {
      const auto parallel = oslo::initialize(model, oslo::Config::parse(config), how);
      torch::optim::AdamW optimizer(model->parameters(), 1e-3);
      for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad();
        entry.loss(entry.forward(*model, batch.inputs), batch).backward();
        optimizer.step();
      }
      most = memory.take_peak();
    } catch (const oslo::Error& error) {
      refusal = error.what();
    }
  });
  return most;
}

/// The number in "the least is 123 bytes"; 0 without one.
inline int64_t least_told(const std::string& refusal) {
  const std::string before = "the least is ";
  const size_t at = refusal.find(before);
  return at == std::string::npos ? 0 : std::stoll(refusal.substr(at + before.size()));
}

class WithinBudget : public testing::TestWithParam<Entry (*)()> {};

TEST_P(WithinBudget, TheMeasuredPeakStays) {
  const Entry entry = GetParam()();
  std::string refusal;
  const int64_t plain =
      peak_of_steps(entry, R"({"model_parallelism": {"enable": false}})", false, refusal);
  ASSERT_GT(plain, 0) << refusal;
  for (const bool example : {false, true}) {
    const auto peak_within = [&](int64_t budget) {
      const std::string config = c10::str(R"({"activation_checkpoint": {"memory": )", budget, "}}");
      return peak_of_steps(entry, config, example, refusal);
    };
    int64_t before = std::numeric_limits<int64_t>::max();
    bool refused = false;
    for (const int percent : {100, 75, 50, 35, 25}) {
      const int64_t budget = plain * percent / 100;
      SCOPED_TRACE(c10::str(entry.name, example ? " with an example, " : ", ", percent, " %"));
      const int64_t peak = peak_within(budget);
      if (peak < 0) {
        const int64_t least = least_told(refusal);
        EXPECT_GT(least, budget) << refusal;
        // By an example it is told before the first step, and is enough.
        if (example && !refused) {
          EXPECT_EQ(refusal.rfind("initialize: ", 0), 0u) << refusal;
          const int64_t then = peak_within(least);
          EXPECT_GT(then, 0) << refusal;
          EXPECT_LE(then, least);
        }
        refused = true;
        continue;
      }
      EXPECT_FALSE(refused) << "a larger one was refused";
      EXPECT_LE(peak, budget);
      EXPECT_LE(peak, before);
      before = peak;
    }
  }
}

inline std::string budget_case_name(const testing::TestParamInfo<Entry (*)()>& info) {
  return info.param().name;
}

}  // namespace catalogue
