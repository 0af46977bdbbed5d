#include "checkpoint/storage/staging_directory.h"

#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "checkpoint/storage/file_io.h"
#include "tests/support/error_of.h"
#include "tests/support/files.h"
#include "tests/support/temporary_directory.h"

namespace oslo {
namespace {

namespace fs = std::filesystem;
using ::oslo::test::contents;
using ::oslo::test::error_of;
using ::oslo::test::TemporaryDirectory;
using ::oslo::test::write_contents;
using ::testing::Values;

// A generation is three files that say the same number: a mix or a cut file shows.
constexpr const char* kFiles[] = {"a.safetensors", "b.safetensors", "index.json"};

void save(const fs::path& target, int generation, Replace replace = Replace::kExchange) {
  StagingDirectory staging(target, replace);
  for (const char* name : kFiles) {
    OutputFile file(staging.path() / name);
    const std::string text = std::to_string(generation);
    file.write(text.data(), text.size());
    file.close();
  }
  staging.commit();
}

/// The generation that a reader finds, or nothing if what it finds is not one complete save.
std::optional<int> load(const fs::path& target) {
  const fs::path folder = find_committed(target);
  std::set<std::string> seen;
  for (const char* name : kFiles) {
    seen.insert(contents(folder / name));
  }
  if (seen.size() != 1 || seen.begin()->empty()) {
    return std::nullopt;
  }
  return std::stoi(*seen.begin());
}

std::set<std::string> names(const fs::path& folder) {
  std::set<std::string> out;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    out.insert(entry.path().filename().string());
  }
  return out;
}

class StagingDirectoryTest : public ::testing::TestWithParam<Replace> {
 protected:
  TemporaryDirectory folder_;
  const fs::path target_ = folder_ / "ckpt";
};

INSTANTIATE_TEST_SUITE_P(Replace, StagingDirectoryTest,
                         Values(Replace::kExchange, Replace::kTwoSteps));

TEST_P(StagingDirectoryTest, CommitsReplacesAndLeavesNothingElse) {
  for (const int generation : {1, 2, 3}) {
    save(target_, generation, GetParam());
    EXPECT_EQ(load(target_), generation);
    EXPECT_EQ(names(folder_.path()), std::set<std::string>{"ckpt"});
  }
}

TEST_P(StagingDirectoryTest, FilesOfTheOldSaveDoNotSurvive) {
  save(target_, 1, GetParam());
  write_contents(target_ / "of_rank_7.safetensors", "old");
  save(target_, 2, GetParam());
  EXPECT_EQ(names(target_),
            (std::set<std::string>{"a.safetensors", "b.safetensors", "index.json"}));
}

TEST_P(StagingDirectoryTest, UncommittedLeavesThePreviousAndNoTrace) {
  save(target_, 1, GetParam());
  {
    StagingDirectory staging(target_, GetParam());
    write_contents(staging.path() / "a.safetensors", "2");
    EXPECT_EQ(names(folder_.path()).size(), 3u);  // the checkpoint, the new folder, the lock
  }
  EXPECT_EQ(load(target_), 1);
  EXPECT_EQ(names(folder_.path()), std::set<std::string>{"ckpt"});
}

/// Runs `save(generation 2)` in a child and kills it at its `stop`-th system call, before the call
/// for odd stops and after it for even ones. Returns whether the child was killed, rather than
/// having finished before.
bool save_and_kill(const fs::path& target, Replace replace, int stop) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    ::raise(SIGSTOP);
    save(target, 2, replace);
    ::_exit(0);
  }
  int status = 0;
  for (int stops = 0; ::waitpid(child, &status, 0) == child && WIFSTOPPED(status); ++stops) {
    if (stops == stop) {
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return WIFSIGNALED(status);
    }
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
  }
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  return false;
}

bool can_trace() {
  const pid_t child = ::fork();
  if (child == 0) {
    ::_exit(::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0 ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Every moment at which the outside can tell two states apart is between two system calls.
TEST_P(StagingDirectoryTest, KilledBetweenAnyTwoSystemCallsOneGenerationIsThere) {
  if (!can_trace()) {
    GTEST_SKIP() << "this container forbids ptrace";
  }
  std::set<int> found;
  int stop = 1;
  for (bool killed = true; killed; ++stop) {
    ASSERT_LT(stop, 2000);
    save(target_, 1, GetParam());
    ASSERT_EQ(names(folder_.path()), std::set<std::string>{"ckpt"}) << "before stop " << stop;
    killed = save_and_kill(target_, GetParam(), stop);
    const std::optional<int> generation = load(target_);
    ASSERT_TRUE(generation == 1 || generation == 2) << "killed at stop " << stop;
    found.insert(*generation);
  }
  EXPECT_GT(stop, 40);
  EXPECT_EQ(found, (std::set<int>{1, 2}));
}

// The same without tracing: a child saves on and on and says after every save that it did; it is
// killed after some of its words, wherever it is by then.
TEST_P(StagingDirectoryTest, KilledInALoopOfSavesTheLastOneSpokenOfOrALaterIsThere) {
  std::minstd_rand random(17);
  save(target_, 0, GetParam());
  int last = 0;
  for (int round = 0; round < 20; ++round) {
    int words[2];
    ASSERT_EQ(::pipe(words), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      for (int generation = last + 1;; ++generation) {
        save(target_, generation, GetParam());
        if (::write(words[1], &generation, sizeof generation) != sizeof generation) {
          ::_exit(1);
        }
      }
    }
    ::close(words[1]);
    for (unsigned left = random() % 5 + 1; left > 0; --left) {
      ASSERT_EQ(::read(words[0], &last, sizeof last), static_cast<ssize_t>(sizeof last));
    }
    // A little work, never the same, so that the kill does not always meet the same line.
    for (unsigned calls = random() % 2000; calls > 0; --calls) {
      ::getppid();
    }
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    ::close(words[0]);
    const std::optional<int> generation = load(target_);
    ASSERT_TRUE(generation.has_value()) << "round " << round;
    EXPECT_GE(*generation, last);
    last = *generation;
  }
  save(target_, last + 1, GetParam());
  EXPECT_EQ(names(folder_.path()), std::set<std::string>{"ckpt"});
}

TEST(StagingDirectory, OtherProcessesWriteIntoIt) {
  const TemporaryDirectory folder;
  StagingDirectory staging(folder / "ckpt");
  for (const char* name : kFiles) {
    const pid_t child = ::fork();
    if (child == 0) {
      write_contents(staging.path() / name, "5");
      sync_file(staging.path() / name);
      // Another process's copy of the object must not take the folder away.
      staging.~StagingDirectory();
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  staging.commit();
  EXPECT_EQ(load(folder / "ckpt"), 5);
  EXPECT_EQ(staging.path(), folder / "ckpt");
}

TEST(StagingDirectory, TwoSavesIntoOneFolderAreKeptApart) {
  const TemporaryDirectory folder;
  StagingDirectory first(folder / "ckpt");
  EXPECT_NE(error_of([&] { StagingDirectory second(folder / "ckpt"); }).find("is running"),
            std::string::npos);
  StagingDirectory elsewhere(folder / "ckpt.tmp-x");
  first.commit();
  EXPECT_NO_THROW(StagingDirectory(folder / "ckpt"));
  elsewhere.commit();
}

TEST(StagingDirectory, CleansOnlyWhatIsItsOwn) {
  const TemporaryDirectory folder;
  for (const char* name :
       {".ckpt.tmp-12-0", ".ckpt.tmp-x.tmp-12-0", ".ckpt.tmp-x", ".other.tmp-1-0"}) {
    fs::create_directory(folder / name);
  }
  save(folder / "ckpt", 1);
  EXPECT_EQ(names(folder.path()), (std::set<std::string>{".ckpt.tmp-x", ".ckpt.tmp-x.tmp-12-0",
                                                         ".other.tmp-1-0", "ckpt"}));
}

// Two hosts may both hold the lock, where the file system keeps it within a host.
TEST(StagingDirectory, AnotherHostsFolderIsLeftUntilNothingWasWrittenInItForADay) {
  const TemporaryDirectory folder;
  const fs::path live = folder / ".ckpt.tmp-0badbeef-12-0",
                 dead = folder / ".ckpt.tmp-0badbeef-13-0",
                 busy = folder / ".ckpt.tmp-0badbeef-14-0";
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(25);
  for (const fs::path& path : {live, dead, busy}) {
    fs::create_directory(path);
    write_contents(path / "a.safetensors", "1");
  }
  for (const fs::path& path : {dead / "a.safetensors", dead, busy}) {
    fs::last_write_time(path, long_ago);
  }
  save(folder / "ckpt", 1);
  EXPECT_EQ(names(folder.path()),
            (std::set<std::string>{live.filename(), busy.filename(), "ckpt"}));
}

// Replacing a folder deletes it: a home folder given by mistake must survive.
TEST(StagingDirectory, RefusesAFolderWithForeignFiles) {
  const TemporaryDirectory folder;
  const fs::path target = folder / "project";
  save(target, 1);
  write_contents(target / "train.cpp", "work");
  const std::string message = error_of([&] { save(target, 2); });
  EXPECT_NE(message.find("train.cpp"), std::string::npos) << message;
  fs::remove(target / "train.cpp");
  StagingDirectory staging(target);
  fs::create_directory(target / "notes");
  EXPECT_NE(error_of([&] { staging.commit(); }).find("notes"), std::string::npos);
  EXPECT_EQ(load(target), 1);
}

TEST(StagingDirectory, RefusesWhatIsNoFolderAndASecondCommit) {
  const TemporaryDirectory folder;
  write_contents(folder / "file", "text");
  EXPECT_NE(error_of([&] { StagingDirectory(folder / "file"); }).find("no folder"),
            std::string::npos);
  EXPECT_NE(error_of([&] { StagingDirectory(folder / "file/below"); }).find("cannot"),
            std::string::npos);
  EXPECT_NE(error_of([] { StagingDirectory("/"); }).find("a folder with a name"),
            std::string::npos);
  EXPECT_EQ(contents(folder / "file"), "text");
  EXPECT_EQ(names(folder.path()), std::set<std::string>{"file"});
  StagingDirectory staging(folder / "ckpt");
  staging.commit();
  EXPECT_NE(error_of([&] { staging.commit(); }).find("committed already"), std::string::npos);
}

TEST(StagingDirectory, MakesParentsAndFollowsLinks) {
  const TemporaryDirectory folder;
  save(folder / "runs/7/ckpt/", 1);
  fs::create_directory_symlink(folder / "runs/7/ckpt", folder / "latest");
  save(folder / "latest", 2);
  EXPECT_TRUE(fs::is_symlink(folder / "latest"));
  EXPECT_EQ(load(folder / "runs/7/ckpt"), 2);
  EXPECT_EQ(load(folder / "latest"), 2);
}

}  // namespace
}  // namespace oslo
