#include "mpu/launch/local_rank_argument.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "mpu/base/error.h"

namespace oslo {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

class LocalRankArgument : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* const text = std::getenv("LOCAL_RANK")) before_ = text;
    setenv("LOCAL_RANK", "3", 1);
  }
  void TearDown() override {
    before_.empty() ? unsetenv("LOCAL_RANK") : setenv("LOCAL_RANK", before_.c_str(), 1);
  }

  /// What is left of a program's arguments.
  static Words left_of(Words words) {
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    int argc = static_cast<int>(words.size());
    drop_local_rank(argc, argv.data());
    EXPECT_EQ(argv[argc], nullptr);
    return {argv.data(), argv.data() + argc};
  }

  static std::string refusal(const Words& words) {
    try {
      left_of(words);
      return "accepted";
    } catch (const Error& error) {
      return error.what();
    }
  }

 private:
  std::string before_;
};

TEST_F(LocalRankArgument, IsTakenOutInEitherSpelling) {
  EXPECT_THAT(left_of({"train", "--local_rank=3", "--steps", "5"}),
              ElementsAre("train", "--steps", "5"));
  EXPECT_THAT(left_of({"train", "--local-rank=3"}), ElementsAre("train"));
}

TEST_F(LocalRankArgument, OtherArgumentsStay) {
  EXPECT_THAT(left_of({"train"}), ElementsAre("train"));
  EXPECT_THAT(left_of({"train", "--steps", "--local_rank=3"}),
              ElementsAre("train", "--steps", "--local_rank=3"));
  EXPECT_THAT(left_of({"train", "--local_ranks=3"}), ElementsAre("train", "--local_ranks=3"));
}

TEST_F(LocalRankArgument, MustSayWhatTheEnvironmentSays) {
  EXPECT_THAT(refusal({"train", "--local_rank=2"}),
              HasSubstr("--local_rank=2 contradicts LOCAL_RANK=3"));
  unsetenv("LOCAL_RANK");
  EXPECT_THAT(refusal({"train", "--local_rank=2"}), HasSubstr("LOCAL_RANK is not set; set it"));
}

}  // namespace
}  // namespace oslo
