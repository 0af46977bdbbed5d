// How a plan is told: equal layers share a line, every group is named, nothing is wider than need
// be.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "parallelizers/plan/layers/role.h"
#include "parallelizers/plan/report/fold.h"
#include "tests/models/gpt2.h"
#include "tests/support/initialized.h"
#include "tests/support/parity.h"

namespace oslo {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

PlanEntry entry(const std::string& parameter, const std::string& placement,
                const std::string& why = "because") {
  PlanEntry entry;
  entry.parameter = parameter;
  entry.module_before = entry.module_after = "torch::nn::Linear";
  entry.placement = placement;
  entry.why = why;
  entry.global_shape = entry.local_shape = {2};
  return entry;
}

std::vector<std::string> names(const std::vector<PlanEntry>& entries) {
  std::vector<std::string> names;
  for (const FoldedEntry& line : fold(entries)) {
    names.push_back(c10::str(line.name, " x ", line.entries.size()));
  }
  return names;
}

TEST(PlanTable, EqualLayersShareALine) {
  EXPECT_THAT(
      names({entry("wte.weight", "vocab"), entry("h.0.up.weight", "column"),
             entry("h.0.up.bias", "column"), entry("h.1.up.weight", "column"),
             entry("h.1.up.bias", "column"), entry("h.2.up.weight", "column"),
             entry("h.2.up.bias", "column"), entry("head.1.weight", "column")}),
      ElementsAre("wte.weight x 1", "h.*.up.weight x 3", "h.*.up.bias x 3", "head.1.weight x 1"));
}

TEST(PlanTable, LayersThatDifferAreNamedByNumber) {
  EXPECT_THAT(
      names({entry("h.0.up", "column"), entry("h.1.up", "row"), entry("h.2.up", "column"),
             entry("h.3.up", "column"), entry("h.4.up", "column"), entry("h.10.up", "row")}),
      ElementsAre("h.{0,2-4}.up x 4", "h.{1,10}.up x 2"));
  // Another reason is another line, too, but not one that names its own layer.
  EXPECT_THAT(names({entry("h.0.up", "column", "as h.0.down"),
                     entry("h.1.up", "column", "as h.1.down"), entry("h.2.up", "column", "small")}),
              ElementsAre("h.{0,1}.up x 2", "h.2.up x 1"));
  EXPECT_EQ(fold({entry("h.0.up", "row", "30.7 KB, tied to h.0.down"),
                  entry("h.1.up", "row", "30.7 KB, tied to h.1.down")})
                .front()
                .why,
            "30.7 KB, tied to h.*.down");
  // Only what differs gets a star.
  EXPECT_THAT(names({entry("a.1.b.0.c", "column"), entry("a.1.b.7.c", "column")}),
              ElementsAre("a.1.b.*.c x 2"));
}

TEST(PlanTable, NothingIsLost) {
  models::GPT2Options options;
  options.layers = 11;
  const Plan plan = initialize(models::GPT2(options), Config::parse(parity::tensor_parallel(2)),
                               test::in(World::fake(0, 2)))
                        .plan();
  size_t lines = 0, entries = 0;
  for (const FoldedEntry& line : fold(plan.entries)) {
    ++lines;
    entries += line.entries.size();
    for (const PlanEntry* each : line.entries) {
      EXPECT_EQ(each->placement, line.entries.front()->placement);
      EXPECT_EQ(each->local_shape, line.entries.front()->local_shape);
    }
  }
  EXPECT_EQ(entries, plan.entries.size());
  EXPECT_EQ(plan.to_json()["parameters"].size(), plan.entries.size());  // those are not folded
  EXPECT_LT(lines, plan.entries.size() / 5);
  const std::string text = plan.to_string();
  EXPECT_THAT(text, AllOf(HasSubstr("h.*.attn.c_attn.weight x 11"), HasSubstr("[192, 64]"),
                          HasSubstr("Linear -> ColumnParallelLinear"), Not(HasSubstr("h.3."))));
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) EXPECT_LE(line.size(), 96u) << line;
}

TEST(PlanTable, TellsTheGridAndItsGroups) {
  const Plan plan =
      initialize(models::GPT2(models::GPT2Options()), Config::parse(parity::tensor_parallel(4)),
                 test::in(World::fake(0, 8)))
          .plan();
  EXPECT_THAT(plan.to_string(),
              AllOf(HasSubstr("8 ranks: data 2 x tensor 4\n"),
                    HasSubstr("    data groups: 0 4, 1 5, 2 6, 3 7\n"),
                    HasSubstr("    tensor groups: 0-3, 4-7\n"), Not(HasSubstr("expected step"))));
  const auto json = plan.to_json();
  EXPECT_EQ(json["ranks"], 8);
  EXPECT_EQ(json["axes"][1]["axis"], "tensor");
  EXPECT_EQ(json["axes"][1]["groups"], nlohmann::json({{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_FALSE(json.contains("expected"));
}

TEST(PlanTable, TimesAreReadable) {
  EXPECT_EQ(time_text(0.00123), "1.23 ms");
  EXPECT_EQ(time_text(4.5e-5), "45 us");
  EXPECT_EQ(time_text(0.45), "450 ms");
  EXPECT_EQ(time_text(12.34), "12.3 s");
}

}  // namespace
}  // namespace oslo
