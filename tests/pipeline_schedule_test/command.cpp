// `oslo schedule`: what it prints and writes, and its exit codes.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "tests/support/temporary_directory.h"
#include "tests/support/tool_process.h"

namespace {

using oslo::test::ToolProcess;
using oslo::test::Words;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string read(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// `error`, if not empty, stands in what a run that fails says.
void expect_failure(const Words& words, int exit_code, const std::string& error) {
  ToolProcess tool(words);
  EXPECT_EQ(tool.finish(), exit_code) << error;
  EXPECT_THAT(tool.error(), HasSubstr(error));
  EXPECT_EQ(tool.output(), "") << error;
}

TEST(OsloSchedule, ShowsAStepBesideItsFormula) {
  ToolProcess tool({"schedule", "--kind", "interleaved", "-p", "4", "-m", "8", "-v", "2"});
  EXPECT_EQ(tool.finish(), 0) << tool.error();
  EXPECT_THAT(
      tool.output(),
      AllOf(StartsWith(
                "interleaved: 4 ranks, 8 micro-batches, 2 stages a rank\n\n"
                "rank 0  0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 0F4 0F5 0F6 ........... 4B0==== 0F7 "),
            HasSubstr("makespan  57\n"), HasSubstr("bubble    15.8%\n"),
            HasSubstr("formula   15.8% = (p-1)/(v m + p-1); makespan 57\n"),
            HasSubstr("   3     3 7    48        0              0     9   15.8%          5   "
                      "       5\n")));
}

TEST(OsloSchedule, Costs) {
  ToolProcess zbv({"schedule", "-k", "zbv", "-p", "4", "-m", "8", "--costs", "I=1.3,W=.7"});
  EXPECT_EQ(zbv.finish(), 0) << zbv.error();
  EXPECT_THAT(zbv.output(), AllOf(HasSubstr("makespan  51.9\n"), HasSubstr("none in closed form")));
  ToolProcess stages({"schedule", "-p", "2", "-m", "4", "--costs", "F=1/3"});
  EXPECT_EQ(stages.finish(), 0) << stages.error();
  EXPECT_THAT(stages.output(),
              AllOf(HasSubstr("makespan  23\n"), HasSubstr("only where stages cost the same")));
}

TEST(OsloSchedule, ComparesKindsOverOneModel) {
  const oslo::test::TemporaryDirectory directory;
  const std::string svg = directory.path() / "kinds.svg";
  ToolProcess tool({"schedule", "--compare", "-p", "4", "-m", "7", "--svg", svg});
  EXPECT_EQ(tool.finish(), 0) << tool.error();
  EXPECT_EQ(
      tool.output(),
      "       kind  stages a rank  makespan  bubble  kept to I  kept to W\n"
      "      naive              1        84   75.0%          1          1\n"
      "      gpipe              1        30   30.0%          7          7\n"
      "       1f1b              1        30   30.0%          4          4\n"
      "interleaved              2      25.5   17.6%          7          7\n"
      "zero_bubble              1        24   12.5%          4          4\n"
      "        zbv              2      22.5    6.7%          4          4\n"
      "\ndualpipev: 7 micro-batches are fewer than its 8 stages on 4 ranks; take at least 8, or "
      "zbv\n");
  EXPECT_THAT(read(svg), HasSubstr(">zbv: 4 ranks, 7 micro-batches, 2 stages a rank</text>"));
  expect_failure({"schedule", "--compare", "-p", "4"}, 2, "--micro-batches is required");
  expect_failure({"schedule", "--compare", "-p", "4", "-m", "7", "-k", "zbv"}, 2,
                 "--kind excludes --compare");
}

TEST(OsloSchedule, AValueThatForwardReads) {
  ToolProcess one({"schedule", "-p", "4", "-m", "8", "--read", "3"});
  EXPECT_EQ(one.finish(), 0) << one.error();
  EXPECT_THAT(one.output(), HasSubstr("makespan  49\n"));
  expect_failure({"schedule", "-k", "zbv", "-p", "4", "-m", "8", "--read", "6"}, 2,
                 "rank 0 stands in 0F0, whose forward reads a value of 6F0");
  expect_failure({"schedule", "-p", "4", "-m", "8", "--read", "4"}, 2,
                 "--read 4: stages are 0 to 3");
}

TEST(OsloSchedule, ListsReadBack) {
  const oslo::test::TemporaryDirectory directory;
  ToolProcess lists({"schedule", "-k", "gpipe", "-p", "2", "-m", "3", "--lists"});
  EXPECT_EQ(lists.finish(), 0) << lists.error();
  EXPECT_EQ(lists.output(),
            "gpipe ranks 2 micro_batches 3 chunks 1\n"
            "rank 0: F0 F1 F2 B0 B1 B2\n"
            "rank 1: F0 F1 F2 B0 B1 B2\n");
  const std::string path = directory.path() / "lists.txt";
  std::ofstream(path) << lists.output();
  ToolProcess again({"schedule", "--from", path});
  EXPECT_EQ(again.finish(), 0) << again.error();
  EXPECT_THAT(again.output(), HasSubstr("makespan  12\n"));
}

TEST(OsloSchedule, ATraceReadsBackAsAMeasuredStep) {
  const oslo::test::TemporaryDirectory directory;
  const std::string trace = directory.path() / "step.json";
  const std::string svg = directory.path() / "step.svg";
  ToolProcess writes({"schedule", "-p", "2", "-m", "4", "--chrome", trace, "--svg", svg});
  EXPECT_EQ(writes.finish(), 0) << writes.error();
  EXPECT_THAT(read(svg), AllOf(StartsWith("<svg "), HasSubstr("<title>1B3</title>")));
  ToolProcess reads({"schedule", "--measured", trace, "--svg", svg});
  EXPECT_EQ(reads.finish(), 0) << reads.error();
  EXPECT_THAT(reads.output(),
              AllOf(HasSubstr("step      15 ms; simulated 15 ms"),
                    HasSubstr("bubble    20.0%; simulated 20.0%"),
                    HasSubstr("   0  80.0%    20.0%           0.0%   0.0%   20.0%      20.0%\n"),
                    HasSubstr("   1  80.0%     0.0%           0.0%  20.0%   20.0%      20.0%\n")));
  EXPECT_THAT(read(svg), HasSubstr(">simulated</text>"));
}

TEST(OsloSchedule, MisuseEndsWith2AndABadFileWith1) {
  const Words sizes = {"schedule", "-p", "2", "-m", "3"};
  const auto with = [&](Words more) {
    more.insert(more.begin(), sizes.begin(), sizes.end());
    return more;
  };
  expect_failure({"schedule"}, 2, "--from, --measured or --ranks is required");
  expect_failure({"schedule", "-p", "2"}, 2, "--from, --measured or --micro-batches is required");
  expect_failure({"schedule", "-p", "0", "-m", "1"}, 2, "--ranks");
  expect_failure({"schedule", "-p", "two", "-m", "1"}, 2, "two");
  expect_failure({"schedule", "-p", "65536", "-m", "65536"}, 2, "actions are more than");
  expect_failure(with({"--kind", "2f2b"}), 2, "oslo schedule: schedule kind \"2f2b\" is unknown");
  expect_failure(with({"--kind", "dualpipev"}), 2, "3 micro-batches are fewer than its 4 stages");
  expect_failure(with({"--costs", "X=1"}), 2, "--costs: \"X=1\" is unknown");
  expect_failure(with({"--costs", "F=-1"}), 2, "a cost is a number of at least 0");
  expect_failure(with({"--costs", "F=1/2/3"}), 2, "has 3 numbers for 2 stages");
  expect_failure(with({"--from", "x"}), 2, "excludes --from");
  expect_failure({"schedule", "-v", "2", "--measured", "x"}, 2, "excludes --measured");
  expect_failure({"schedule", "--from", "x", "--measured", "x"}, 2, "excludes");
  expect_failure({"schedule", "--from", "/no/such/file"}, 1, "cannot read /no/such/file");
  expect_failure({"schedule", "--measured", "/no/such/file"}, 1, "cannot read /no/such/file");
  expect_failure({"schedule", "--measured", OSLO_SOURCE_DIR "/LICENSE"}, 1,
                 "a Chrome trace is JSON, and this is not");
  expect_failure({"schedule", "--from", OSLO_SOURCE_DIR "/LICENSE"}, 1, "line 1");
  ToolProcess unwritable(with({"--svg", "/no/such/folder/step.svg"}));
  EXPECT_EQ(unwritable.finish(), 1);
  EXPECT_THAT(unwritable.error(), HasSubstr("cannot write /no/such/folder/step.svg"));
  ToolProcess help({"schedule", "--help"});
  EXPECT_EQ(help.finish(), 0);
  EXPECT_THAT(help.output(), HasSubstr("oslo schedule --kind interleaved -p 4 -m 8 -v 2"));
}

// Every "$ oslo schedule ..." of the page prints what stands below it there.
TEST(OsloSchedule, ThePageShowsWhatItPrints) {
  std::ifstream page(OSLO_SOURCE_DIR "/docs/pipeline.md");
  int commands = 0;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("$ oslo ")) continue;
    std::istringstream words(line.substr(7));
    ToolProcess tool(Words{std::istream_iterator<std::string>(words), {}});
    std::string shown;
    for (std::string text; std::getline(page, text) && text != "```";) shown += text + "\n";
    tool.finish();
    EXPECT_EQ(tool.output() + tool.error(), shown) << line;
    ++commands;
  }
  EXPECT_GE(commands, 4);
  const oslo::test::TemporaryDirectory directory;
  const std::string svg = directory.path() / "schedules.svg";
  ToolProcess draws({"schedule", "--compare", "-p", "4", "-m", "8", "--svg", svg});
  EXPECT_EQ(draws.finish(), 0) << draws.error();
  EXPECT_TRUE(read(svg) == read(OSLO_SOURCE_DIR "/docs/schedules.svg"))
      << "oslo schedule --compare -p 4 -m 8 --svg docs/schedules.svg draws it anew";
}

}  // namespace
