// What is kept of a step whose phases are known.
#include <gtest/gtest.h>

#include "mpu/base/bytes.h"
#include "parallelizers/memory/budget/step_profile.h"

namespace oslo {
namespace {

/// Three segments of 10 bytes each: forward, backward the other way round, optimizer.
StepProfile three() {
  StepProfile profile;
  profile.phases = {{"f0", 20}, {"f1", 21}, {"f2", 22}, {"loss", 15},
                    {"b2", 25}, {"b1", 24}, {"b0", 23}, {"step", 18}};
  for (int segment = 0; segment < 3; ++segment) {
    SegmentRun run;
    run.segment = segment;
    run.let_go = 10;
    run.work = 5;
    run.ended = segment + 1;
    run.reran = 6 - segment;
    profile.runs.push_back(run);
  }
  return profile;
}

std::vector<bool> kept(int64_t budget) {
  return choose_kept(three(), 3, budget).kept;
}

TEST(KeptSegments, AreTheLastOnesFirst) {
  // The last one adds to the loss's phase alone: 25.
  EXPECT_EQ(kept(25), (std::vector<bool>{false, false, true}));
  // The second to f2, the loss and b2: 35.
  EXPECT_EQ(kept(34), (std::vector<bool>{false, false, true}));
  EXPECT_EQ(kept(35), (std::vector<bool>{false, true, true}));
  EXPECT_EQ(kept(44), (std::vector<bool>{false, true, true}));
  EXPECT_EQ(kept(45), (std::vector<bool>{true, true, true}));
  const KeptSegments choice = choose_kept(three(), 3, 40);
  EXPECT_EQ(choice.peak, 35);
  EXPECT_EQ(choice.at, "loss");
}

TEST(KeptSegments, AreNoneWhereTheProfileDoesNotFit) {
  const KeptSegments choice = choose_kept(three(), 3, 24);
  EXPECT_EQ(choice.kept, std::vector<bool>(3));
  EXPECT_EQ(choice.peak, 25);
  EXPECT_EQ(choice.at, "b2");
}

TEST(KeptSegments, AreThoseWhoseRecomputationTakesMostForAByte) {
  StepProfile profile = three();
  profile.runs[0].work = 50;
  EXPECT_EQ(choose_kept(profile, 3, 35).kept, (std::vector<bool>{true, false, true}));
}

TEST(KeptSegments, StayUntilTheEndWhereNoBackwardCameToThem) {
  StepProfile profile = three();
  profile.runs[2].reran = SegmentRun::kNot;
  EXPECT_EQ(choose_kept(profile, 3, 34).kept, std::vector<bool>(3));
  EXPECT_EQ(choose_kept(profile, 3, 35).kept, (std::vector<bool>{false, false, true}));
}

TEST(KeptSegments, AddNothingToWhatHappensOnce) {
  StepProfile profile = three();
  profile.phases[3].once = true;
  EXPECT_EQ(choose_kept(profile, 3, 25).kept, (std::vector<bool>{false, false, true}));
  profile.phases[3].most = 99;
  EXPECT_EQ(choose_kept(profile, 3, 60).peak, 99);
}

TEST(KeptSegments, OfSmallerBudgetsAreAPartOfThoseOfLargerOnes) {
  std::vector<bool> before(3);
  int64_t peak = 0;
  for (int64_t budget = 20; budget < 60; ++budget) {
    const KeptSegments choice = choose_kept(three(), 3, budget);
    for (size_t i = 0; i < 3; ++i) EXPECT_LE(before[i], choice.kept[i]) << budget;
    EXPECT_GE(choice.peak, peak);
    before = choice.kept;
    peak = choice.peak;
  }
}

TEST(Bytes, AreReadWithTheirUnits) {
  EXPECT_EQ(parse_bytes("2GB"), 2000000000);
  EXPECT_EQ(parse_bytes("1.5 GiB"), 3LL << 29);
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("7B"), 7);
  EXPECT_EQ(parse_bytes("3KB"), 3000);
  EXPECT_EQ(parse_bytes("3 KiB"), 3072);
  EXPECT_EQ(parse_bytes("2TB"), 2000000000000);
  for (const char* wrong : {"", "GB", "-1GB", "0", "2gb", "2G", "2 XB", "2GBs", "1e9", "2  GB",
                            "nan", "inf", "0.5", "9999999999TB", "2iB"}) {
    EXPECT_EQ(parse_bytes(wrong), std::nullopt) << wrong;
  }
}

}  // namespace
}  // namespace oslo
