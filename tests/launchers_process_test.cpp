// A program under the launchers that come with other libraries: each one's environment and
// arguments, and torch's own launcher where Python has it.
#include <gmock/gmock.h>
#include <stdio.h>

#include <array>
#include <string>
#include <utility>

#include "tests/support/free_port.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/transformers.h"

namespace oslo::test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kProgram = TUTORIALS "/tensor_data_parallel_gpt2";
constexpr const char* kArguments =
    "--tensor-parallel-size 2 --layers 1 --hidden 8 --heads 2 --seq-len 4 --train-step 1";

/// A shell script's exit code and what it wrote.
std::pair<int, std::string> shell(const std::string& script) {
  FILE* const stream = ::popen(("exec 2>&1; " + script).c_str(), "r");
  std::string text;
  std::array<char, 4096> buffer;
  while (const size_t count = ::fread(buffer.data(), 1, buffer.size(), stream)) {
    text.append(buffer.data(), count);
  }
  return {::pclose(stream), text};
}

void expect_two_by_two(const std::pair<int, std::string>& run) {
  const auto& [status, text] = run;
  EXPECT_EQ(status, 0) << text;
  EXPECT_THAT(text, HasSubstr("rank 0: data 0 of 2, tensor 0 of 2"));
  EXPECT_THAT(text, HasSubstr("rank 1: data 0 of 2, tensor 1 of 2"));
  EXPECT_THAT(text, HasSubstr("rank 3: data 1 of 2, tensor 1 of 2"));
  EXPECT_THAT(text, HasSubstr("step 1/1  loss 10.8"));
}

/// Starts four ranks as a launcher does; `$r` is the rank.
std::pair<int, std::string> four_ranks(const std::string& variables, const std::string& first) {
  const TemporaryDirectory folder;
  return shell("pids=; for r in 0 1 2 3; do env MASTER_ADDR=127.0.0.1 MASTER_PORT=" +
               std::to_string(free_port()) + " WORLD_SIZE=4 RANK=$r " + variables + " " + kProgram +
               " " + first + " " + kArguments + " --out " + folder.path().string() +
               " & pids=\"$pids $!\"; done; status=0; "
               "for pid in $pids; do wait $pid || status=1; done; exit $status");
}

TEST(Launchers, DeepSpeeds) {
  expect_two_by_two(
      four_ranks("LOCAL_RANK=$r LOCAL_SIZE=4 CROSS_RANK=0 CROSS_SIZE=1", "--local_rank=$r"));
}

TEST(Launchers, OneFlowsAndTorchsBefore19) {
  expect_two_by_two(four_ranks("LOCAL_RANK=$r", ""));
  expect_two_by_two(four_ranks("LOCAL_RANK=$r", "--local_rank=$r"));
}

TEST(Launchers, AnArgumentThatContradictsIsRefused) {
  const auto [status, text] = four_ranks("LOCAL_RANK=$r LOCAL_SIZE=4", "--local_rank=7");
  EXPECT_NE(status, 0);
  EXPECT_THAT(text, HasSubstr("--local_rank=7 contradicts LOCAL_RANK="));
}

/// `python -m torch.distributed.launch`; without --use-env it starts Python files only, of which
/// docs/launching.md has one that becomes the program.
TEST(Launchers, TorchDistributedLaunch) {
  OSLO_NEEDS_TRANSFORMERS();
  const TemporaryDirectory folder;
  const std::string python = (transformers_environment() / "bin/python").string();
  const std::string launch = python + " -m torch.distributed.launch --nproc-per-node=4 " +
                             "--master-port=" + std::to_string(free_port()) + " ";
  const std::string arguments = std::string(" ") + kArguments + " --out " + folder.path().string();
  expect_two_by_two(shell(launch + "--use-env --no-python " + kProgram + arguments));
  expect_two_by_two(
      shell(launch + OSLO_SOURCE_DIR "/tutorials/launch_program.py " + kProgram + arguments));
}

}  // namespace
}  // namespace oslo::test
