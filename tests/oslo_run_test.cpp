// Drives the built `oslo` command; the ranks are small shell programs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/tool_process.h"

namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

using oslo::test::ends;
using oslo::test::lines_of;
using oslo::test::ToolProcess;
using oslo::test::Words;

struct Result {
  int exit_code;
  std::string output;
  std::string error;
};

Result run(const Words& words, const std::string& input = "/dev/null") {
  ToolProcess launcher(words, input);
  const int exit_code = launcher.finish();
  return {exit_code, launcher.output(), launcher.error()};
}

Result run_shell(int ranks, const std::string& script) {
  return run({"run", "-n", std::to_string(ranks), "sh", "-c", script});
}

// The number that ends a line: "[rank 0] 4711".
pid_t pid_in(const std::string& line) {
  return std::stoi(line.substr(line.rfind(' ') + 1));
}

class OsloRun : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "oslo_run_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    setenv("OMP_NUM_THREADS", "1", 1);
    // What ./dev test cuda loads into every program: the shells' own would start a second later.
    unsetenv("LD_PRELOAD");
    for (const char* name : {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_",
                             "GLIBC_TUNABLES"}) {
      unsetenv(name);
    }
    setenv("FIFO", (folder_ / "fifo").c_str(), 1);
    ASSERT_EQ(mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write_file(const std::string& name, const std::string& text, int mode) const {
    std::ofstream(folder_ / name) << text;
    chmod((folder_ / name).c_str(), static_cast<mode_t>(mode));
    return (folder_ / name).string();
  }

  std::filesystem::path folder_;
};

TEST_F(OsloRun, PrefixesEachLineAndKeepsTheStreamsApart) {
  const Result result = run_shell(2, "echo one; echo two; echo oops >&2");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(lines_of(result.output),
              UnorderedElementsAre("[rank 0] one", "[rank 0] two", "[rank 1] one", "[rank 1] two"));
  EXPECT_THAT(lines_of(result.error), UnorderedElementsAre("[rank 0] oops", "[rank 1] oops"));
}

TEST_F(OsloRun, KeepsLinesWholeWhenEachRankWritesThousands) {
  const Result result = run_shell(3, "seq 20000");
  EXPECT_EQ(result.exit_code, 0);
  Words lines = lines_of(result.output);
  ASSERT_EQ(lines.size(), 60000U);
  for (int rank = 0; rank < 3; ++rank) {
    const std::string prefix = "[rank " + std::to_string(rank) + "] ";
    int next = 1;
    for (const std::string& line : lines) {
      if (!line.starts_with(prefix)) continue;
      ASSERT_EQ(line, prefix + std::to_string(next++));
    }
    EXPECT_EQ(next, 20001);
  }
}

TEST_F(OsloRun, PassesOnProgressLinesAndALastLineWithoutEnd) {
  EXPECT_EQ(run_shell(1, "printf '1%%\\r2%%\\r\\ndone'").output,
            "[rank 0] 1%\r[rank 0] 2%\r\n[rank 0] done\n");
}

TEST_F(OsloRun, StartsANewLineAfterAnotherRanksProgress) {
  const Result result = run_shell(2,
                                  "if [ $RANK = 0 ]; then printf '50%%\\r'; : > $FIFO; sleep 100;"
                                  "else : < $FIFO; echo hello; exit 1; fi");
  EXPECT_EQ(result.output, "[rank 0] 50%\r\n[rank 1] hello\n");
}

TEST_F(OsloRun, LeavesVisibleDevicesAloneUnlessAskedForOneEach) {
  const auto seen = [](const char* visible, bool asked) {
    visible == nullptr ? unsetenv("CUDA_VISIBLE_DEVICES")
                       : setenv("CUDA_VISIBLE_DEVICES", visible, 1);
    Words words{"run", "-n", "2", "sh", "-c", "echo \"<$CUDA_VISIBLE_DEVICES>\""};
    if (asked) words.insert(words.begin() + 1, "--gpu-per-rank");
    const Result result = run(words);
    unsetenv("CUDA_VISIBLE_DEVICES");
    return result;
  };
  const auto lines = [&](const char* visible, bool asked) {
    return lines_of(seen(visible, asked).output);
  };
  EXPECT_THAT(lines(nullptr, false), UnorderedElementsAre("[rank 0] <>", "[rank 1] <>"));
  EXPECT_THAT(lines("3,1", false), UnorderedElementsAre("[rank 0] <3,1>", "[rank 1] <3,1>"));
  EXPECT_THAT(lines(nullptr, true), UnorderedElementsAre("[rank 0] <0>", "[rank 1] <1>"));
  EXPECT_THAT(lines("3,GPU-a1,2", true), UnorderedElementsAre("[rank 0] <3>", "[rank 1] <GPU-a1>"));
  for (const char* few : {"5", "", ","}) {
    const Result result = seen(few, true);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.error, AllOf(HasSubstr("CUDA_VISIBLE_DEVICES="), HasSubstr("2 ranks")));
  }
}

TEST_F(OsloRun, NoPrefix) {
  const Result result = run({"run", "-n", "2", "--no-prefix", "echo", "plain"});
  EXPECT_EQ(result.output, "plain\nplain\n");
}

TEST_F(OsloRun, TellsEachRankWhoItIs) {
  setenv("TORCHELASTIC_RUN_ID", "outer", 1);
  setenv("RANK", "17", 1);
  const Result result =
      run_shell(2,
                "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $MASTER_ADDR $OSLO_LAUNCHER "
                "[$TORCHELASTIC_RUN_ID]");
  unsetenv("TORCHELASTIC_RUN_ID");
  unsetenv("RANK");
  EXPECT_THAT(lines_of(result.output), UnorderedElementsAre("[rank 0] 0 2 0 2 127.0.0.1 1 []",
                                                            "[rank 1] 1 2 1 2 127.0.0.1 1 []"));
}

TEST_F(OsloRun, AllRanksShareOnePort) {
  const Words lines =
      lines_of(run({"run", "-n", "3", "--no-prefix", "sh", "-c", "echo $MASTER_PORT"}).output);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_GT(std::stoi(lines[0]), 0);
  EXPECT_THAT(lines, Each(lines[0]));
}

TEST_F(OsloRun, SetsOneThreadARankUnlessToldOtherwise) {
  setenv("OMP_NUM_THREADS", "3", 1);
  const Result kept = run_shell(2, "echo $OMP_NUM_THREADS");
  EXPECT_THAT(lines_of(kept.output), UnorderedElementsAre("[rank 0] 3", "[rank 1] 3"));
  EXPECT_EQ(kept.error, "");
  unsetenv("OMP_NUM_THREADS");
  const Result set = run_shell(2, "echo $OMP_NUM_THREADS");
  EXPECT_THAT(lines_of(set.output), UnorderedElementsAre("[rank 0] 1", "[rank 1] 1"));
  EXPECT_THAT(set.error, HasSubstr("OMP_NUM_THREADS=1"));
}

// As glibc reads them: whole numbers of bytes.
TEST_F(OsloRun, SetsUpMallocUnlessToldOtherwise) {
  const std::string show =
      "echo [$MALLOC_MMAP_THRESHOLD_] [$MALLOC_TRIM_THRESHOLD_] [$MALLOC_TOP_PAD_]";
  const auto seen = [&](const Words& options = {}) {
    Words words{"run", "-n", "1", "--no-prefix"};
    words.insert(words.end(), options.begin(), options.end());
    words.insert(words.end(), {"sh", "-c", show});
    const Result result = run(words);
    EXPECT_EQ(result.error, "");
    return result.output;
  };
  EXPECT_EQ(seen(), "[1073741824] [4294967296] [67108864]\n");
  EXPECT_EQ(seen({"--malloc-defaults"}), "[] [] []\n");
  setenv("MALLOC_TOP_PAD_", "7", 1);
  EXPECT_EQ(seen(), "[] [] [7]\n");
  unsetenv("MALLOC_TOP_PAD_");
  setenv("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=65536", 1);
  EXPECT_EQ(seen(), "[] [] []\n");
  unsetenv("GLIBC_TUNABLES");
}

TEST_F(OsloRun, StandardInputIsRankZeros) {
  const std::string input = write_file("input", "hello\n", 0600);
  EXPECT_EQ(run({"run", "-n", "2", "cat"}, input).output, "[rank 0] hello\n");
}

TEST_F(OsloRun, LeavesTheProgramsArgumentsAlone) {
  const Words arguments = {"-n", "5", "--no-prefix", "--help", "--", "[1,2]", "", "run", "-h"};
  for (const Words& start : {Words{"run", "-n", "1"}, Words{"run", "-n1"},
                             Words{"run", "--ranks=1"}, Words{"run", "--ranks", "1", "--"}}) {
    Words words = start;
    words.insert(words.end(), {"sh", "-c", "for word; do echo \"<$word>\"; done", "name"});
    words.insert(words.end(), arguments.begin(), arguments.end());
    Words expected;
    for (const std::string& word : arguments) expected.push_back("[rank 0] <" + word + ">");
    EXPECT_EQ(lines_of(run(words).output), expected);
  }
}

TEST_F(OsloRun, AProgramMayHaveTheNameOfACommand) {
  const std::string path = std::getenv("PATH");
  setenv("PATH", (folder_.string() + ":" + path).c_str(), 1);
  write_file("run", "#!/bin/sh\necho mine $1\n", 0700);
  const Result result = run({"run", "-n", "1", "run", "-n"});
  setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(result.output, "[rank 0] mine -n\n");
}

TEST_F(OsloRun, TheFirstFailureEndsTheGroupWithItsCodeAndItsWords) {
  const Result result = run_shell(3,
                                  "if [ $RANK = 1 ]; then : < $FIFO; echo it broke >&2; exit 7; fi;"
                                  "trap 'echo lost my peer >&2; exit 9' TERM;"
                                  "[ $RANK = 0 ] && : > $FIFO;"
                                  "sleep 1000 & wait");
  EXPECT_EQ(result.exit_code, 7);
  EXPECT_THAT(result.error, HasSubstr("[rank 0] lost my peer\n"));
  EXPECT_THAT(result.error,
              ::testing::EndsWith("oslo run: rank 1 failed first: exit code 7; its last lines on "
                                  "standard error:\n  it broke\n"));
}

TEST_F(OsloRun, NamesTheSignalThatKilledARank) {
  const Result result = run_shell(2, "[ $RANK = 1 ] && kill -SEGV $$; sleep 1000");
  EXPECT_EQ(result.exit_code, 128 + SIGSEGV);
  EXPECT_THAT(result.error, HasSubstr("rank 1 failed first: killed by SIGSEGV"));
  EXPECT_THAT(result.error, HasSubstr("it wrote nothing\n"));
}

// All ranks fail alike, one of them says why, and another one is faster: what is said is not lost.
TEST_F(OsloRun, RanksThatFailTogetherEndByThemselves) {
  const Result result = run_shell(3,
                                  "if [ $RANK = 1 ]; then : < $FIFO; exit 1; fi;"
                                  "trap 'echo asked to end; exit 9' TERM;"
                                  "if [ $RANK = 2 ]; then exit 1; fi;"
                                  ": > $FIFO; sleep 0.2; echo the sizes do not fit; exit 1");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("[rank 0] the sizes do not fit\n"));
  EXPECT_THAT(result.output, Not(HasSubstr("asked to end")));
}

TEST_F(OsloRun, ShowsWhatAFailedRankWroteToStandardOutput) {
  const Result result = run_shell(1, "echo error: no data; exit 1");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.output, "[rank 0] error: no data\n");
  EXPECT_EQ(result.error,
            "oslo run: rank 0 failed first: exit code 1; it wrote nothing to standard error; its "
            "last lines on standard output:\n  error: no data\n");
}

TEST_F(OsloRun, APlanLeftInTheEnvironmentEndsNothing) {
  setenv("OSLO_PLAN_RANKS", "8", 1);
  const Result result = run_shell(1, "echo [$OSLO_PLAN_RANKS] $OSLO_LAUNCHER");
  unsetenv("OSLO_PLAN_RANKS");
  EXPECT_EQ(result.output, "[rank 0] [] 1\n");
}

TEST_F(OsloRun, ARankThatEndsWellLeavesTheOthersRunning) {
  const Result result =
      run_shell(2, "if [ $RANK = 0 ]; then exec 3> $FIFO; else cat $FIFO; echo later; fi");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.output, "[rank 1] later\n");
}

TEST_F(OsloRun, KillsRanksThatIgnoreTheRequestToEnd) {
  const Result result =
      run({"run", "-n", "2", "--grace", "0", "sh", "-c",
           "if [ $RANK = 1 ]; then : < $FIFO; exit 4; fi; trap '' TERM; : > $FIFO; sleep 1000"});
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.error, HasSubstr("rank 0 did not end on SIGTERM: killed"));
}

TEST_F(OsloRun, SignalsToTheLauncherEndAllRanks) {
  for (const int signal : {SIGINT, SIGTERM}) {
    ToolProcess launcher({"run", "-n", "2", "sh", "-c", "sleep 1000 & echo $!; wait"});
    const Words lines = launcher.wait_for_lines(2);
    ASSERT_EQ(lines.size(), 2U);
    launcher.send(signal);
    EXPECT_EQ(launcher.finish(), 128 + signal);
    EXPECT_THAT(launcher.error(), HasSubstr("received, ending the ranks"));
    for (const std::string& line : lines) EXPECT_TRUE(ends(pid_in(line)));
  }
}

TEST_F(OsloRun, AKilledLauncherTakesEverythingAlong) {
  ToolProcess launcher({"run", "-n", "2", "sh", "-c", "echo $$; sleep 1000 & echo $!; wait"});
  const Words lines = launcher.wait_for_lines(4);
  ASSERT_EQ(lines.size(), 4U);
  launcher.send(SIGKILL);
  EXPECT_EQ(launcher.finish(), 1000 + SIGKILL);
  for (const std::string& line : lines) EXPECT_TRUE(ends(pid_in(line))) << line;
}

TEST_F(OsloRun, NothingOutlivesTheRun) {
  const Result well = run_shell(2, "sleep 1000 & echo $!");
  EXPECT_EQ(well.exit_code, 0);
  const Result badly = run_shell(2, "sleep 1000 & echo $!; [ $RANK = 1 ] && exit 5; wait");
  EXPECT_EQ(badly.exit_code, 5);
  const Words lines = lines_of(well.output + badly.output);
  EXPECT_GE(lines.size(), 3U);  // the failing rank may be faster than its peer
  for (const std::string& line : lines) EXPECT_TRUE(ends(pid_in(line))) << line;
}

TEST_F(OsloRun, EndsWhenNobodyReadsItsOutputAnyMore) {
  ToolProcess launcher({"run", "-n", "2", "sh", "-c", "while echo line; do :; done"});
  launcher.wait_for_lines(1);
  launcher.close_output();
  EXPECT_EQ(launcher.finish(), 128 + SIGPIPE);
}

TEST_F(OsloRun, AProgramThatCannotRunIsOneError) {
  struct Case {
    std::string program;
    int exit_code;
    std::string words;
  };
  const std::string folder = folder_.string();
  for (const Case& one : {
           Case{"no-such-program-here", 127, "no program no-such-program-here in PATH"},
           Case{folder + "/absent", 127, "there is no file " + folder + "/absent"},
           Case{write_file("plain", "text", 0600), 126, "is not an executable file"},
           Case{folder, 126, "is not an executable file"},
           Case{write_file("bare", "echo hi\n", 0700), 126, "#! line"},
           Case{write_file("lost", "#!/no/such/shell\n", 0700), 127, "interpreter"},
       }) {
    const Result result = run({"run", "-n", "3", one.program});
    EXPECT_EQ(result.exit_code, one.exit_code) << one.program;
    EXPECT_THAT(lines_of(result.error),
                ElementsAre(AllOf(StartsWith("oslo run: "), HasSubstr(one.words))));
    EXPECT_EQ(result.output, "");
  }
}

TEST_F(OsloRun, MisuseExitsWithTwo) {
  for (const Words& words :
       {Words{}, Words{"walk"}, Words{"run"}, Words{"run", "-n", "2"},
        Words{"run", "-n", "2", "--"}, Words{"run", "true"}, Words{"run", "-n", "0", "true"},
        Words{"run", "-n", "-1", "true"}, Words{"run", "-n", "two", "true"}, Words{"run", "-n"},
        Words{"run", "-n", "2", "--typo", "true"}}) {
    const Result result = run(words);
    EXPECT_EQ(result.exit_code, 2) << ::testing::PrintToString(words);
    EXPECT_NE(result.error, "") << ::testing::PrintToString(words);
    EXPECT_EQ(result.output, "");
  }
}

TEST_F(OsloRun, Help) {
  const Result all = run({"--help"});
  EXPECT_EQ(all.exit_code, 0);
  EXPECT_THAT(all.output, HasSubstr("run"));
  const Result one = run({"run", "--help"});
  EXPECT_EQ(one.exit_code, 0);
  EXPECT_THAT(one.output, AllOf(HasSubstr("Usage: oslo run -n N"), HasSubstr("Examples:"),
                                HasSubstr("--no-prefix"), Not(HasSubstr("{false}"))));
}

}  // namespace
