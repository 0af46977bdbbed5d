// The tutorial of an operator of one's own on 3 ranks that are processes: with its rule, without,
// and with one on some ranks only.
#include <ATen/Context.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/error_of.h"
#include "tests/support/tool_process.h"

namespace {

using oslo::test::expect_contains;
using oslo::test::ToolProcess;

TEST(OwnOperator, EqualsOneDeviceWithItsRuleAndGathersNothing) {
  ToolProcess job({"run", "-n", "3", "--", OWN_OPERATOR});
  EXPECT_EQ(job.finish(), 0) << job.error();
  expect_contains(job.output(),
                  {"no gathers in the counted step", "tensor  all_reduce  aten::matmul  1      532",
                   "the parallel model equals the reference", "gradients 4 compared"});
}

TEST(OwnOperator, EqualsOneDeviceWithoutARuleAndSaysThatItGathers) {
  ToolProcess job({"run", "-n", "3", "--", OWN_OPERATOR, "--no-rule"});
  EXPECT_EQ(job.finish(), 0) << job.error();
  expect_contains(job.output(), {"mylib::look  1      960    no rule",
                                 "the parallel model equals the reference"});
}

TEST(OwnOperator, RulesThatDifferBetweenRanksAreRefusedOnAllOfThem) {
  const std::string program =
      "if [ $RANK = 1 ]; then exec " OWN_OPERATOR " --no-rule; else exec " OWN_OPERATOR "; fi";
  ToolProcess job({"run", "-n", "3", "--", "sh", "-c", program});
  EXPECT_NE(job.finish(), 0);
  expect_contains(job.error(), {"InitializeOptions differs between ranks",
                                "rule of mylib::look: \"..TC -> ..TC\", whole \"T\""});
}

TEST(OwnOperator, OnGpusSaysOnEveryRankWhyThereIsNone) {
  if (at::hasCUDA()) GTEST_SKIP() << "there is one";
  ToolProcess job({"run", "-n", "2", "--", OWN_OPERATOR, "--device", "cuda"});
  EXPECT_EQ(job.finish(), 1);
  expect_contains(
      job.error(),
      {"[rank 0] error: device 'cuda': ", "[rank 1] error: device 'cuda': ", "docs/gpu.md"});
}

}  // namespace
