// `oslo plan` and `oslo inspect` of a file that Python exported.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/support/tool_process.h"

namespace oslo::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kGpt2 = OSLO_SOURCE_DIR "/tests/data/exported/gpt2.pt2";

TEST(ExportedCommands, PlanPrintsHowRanksWouldShareIt) {
  ToolProcess table({"plan", "-n", "4", kGpt2});
  EXPECT_EQ(table.finish(), 0) << table.error();
  EXPECT_THAT(table.output(),
              AllOf(HasSubstr("4 ranks: tensor 4"), HasSubstr("h.*.attn.c_attn.weight x 2")));
  ToolProcess json({"plan", "-n", "8", "--json", kGpt2, "model_parallelism.enable=true",
                    "model_parallelism.pipeline_parallel_size=2"});
  EXPECT_EQ(json.finish(), 0) << json.error();
  EXPECT_GT(nlohmann::json::parse(json.output()).size(), 0);
}

TEST(ExportedCommands, InspectPrintsWhatIsInTheFile) {
  ToolProcess tool({"inspect", kGpt2});
  EXPECT_EQ(tool.finish(), 0) << tool.error();
  EXPECT_THAT(tool.output(),
              AllOf(HasSubstr("gpt2.pt2: by PyTorch 2.11.0"), HasSubstr("schema 8.17"),
                    HasSubstr("  tokens  Long ["), HasSubstr("results\n  output\n"),
                    HasSubstr("(root)           Gpt2: buffer mask [8, 8]\n"),
                    HasSubstr("h.1.attn.c_attn  Linear: weight [36, 12], bias [36]\n"),
                    HasSubstr("aten.linear.default")));
}

TEST(ExportedCommands, FilesThatAreNoneAreRefused) {
  const auto refused = [](const Words& words, int exit_code, const std::string& said) {
    ToolProcess tool(words);
    EXPECT_EQ(tool.finish(), exit_code);
    EXPECT_THAT(tool.error(), HasSubstr(said));
    EXPECT_EQ(tool.output(), "");
  };
  refused({"inspect", "missing.pt2"}, 127, "there is no file missing.pt2");
  refused({"plan", "-n", "2", "missing.pt2"}, 127, "there is no file missing.pt2");
  refused({"inspect", OSLO_TOOL}, 2, "is neither an exported program");
  refused({"inspect"}, 2, "file");
  refused({"plan", "-n", "2", kGpt2, "tensor_size=2"}, 1, "tensor_size");
}

}  // namespace
}  // namespace oslo::test
