// A training that is killed and started again ends with the weights of one that was not: dropout,
// AdamW's moments and the order of the samples included.
#include <gmock/gmock.h>

#include <csignal>
#include <string>

#include "checkpoint/formats/safetensors.h"
#include "tests/support/files.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/tool_process.h"

namespace oslo::test {
namespace {

using ::testing::HasSubstr;

constexpr int kSteps = 60;

class KilledTraining : public ::testing::TestWithParam<const char*> {
 protected:
  Words command(const std::string& out, const Words& more = {}) const {
    Words words{"run",
                "-n",
                "4",
                "--",
                TUTORIALS "/train_gpt2",
                "--set",
                GetParam(),
                "--layers",
                "2",
                "--hidden",
                "24",
                "--heads",
                "4",
                "--seq-len",
                "8",
                "--steps",
                std::to_string(kSteps),
                "--batch-size",
                "4",
                "--dropout",
                "0.1",
                "--save-every",
                "4",
                "--micro-batches",
                "2",
                "--out",
                folder_ / out,
                "--losses",
                folder_ / (out + ".losses")};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  const TemporaryDirectory folder_;
};

INSTANTIATE_TEST_SUITE_P(Layouts, KilledTraining,
                         ::testing::Values("model_parallelism.tensor_parallel_size=2",
                                           "model_parallelism.pipeline_parallel_size=2"));

TEST_P(KilledTraining, GoesOnToTheSameWeights) {
  ToolProcess whole(command("whole"));
  ASSERT_EQ(whole.finish(), 0) << whole.error();

  {
    ToolProcess killed(command("killed"));
    // Behind the second save, at least.
    killed.wait_for_lines(9);
    killed.send(SIGKILL);
    EXPECT_NE(killed.finish(), 0);
  }
  ToolProcess resumed(command("killed", {"--resume"}));
  ASSERT_EQ(resumed.finish(), 0) << resumed.error();
  const std::string& output = resumed.output();
  EXPECT_THAT(output, HasSubstr("step " + std::to_string(kSteps) + "/"));
  EXPECT_EQ(output.find("step 1/"), std::string::npos) << "it began anew: " << output;

  EXPECT_EQ(contents(folder_ / "killed.losses"), contents(folder_ / "whole.losses"));
  const StateDict expected = read_safetensors(folder_ / "whole/merged_ckpt/model.safetensors");
  const StateDict actual = read_safetensors(folder_ / "killed/merged_ckpt/model.safetensors");
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    EXPECT_TRUE(at::equal(actual.at(name), tensor)) << name;
  }
}

}  // namespace
}  // namespace oslo::test
