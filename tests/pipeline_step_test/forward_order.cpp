// Where ranks of several stages stand in a forward.
#include <gtest/gtest.h>

#include "parallelizers/pipeline/crossing/forward_order.h"

namespace oslo::test {
namespace {

const std::vector<int> kInTurn{0, 1, 0, 1}, kInAV{0, 1, 1, 0};

void expect_crossing(ForwardOrder::Crossing crossing, int sent_in, int received_in) {
  EXPECT_EQ(crossing.sent_in, sent_in);
  EXPECT_EQ(crossing.received_in, received_in);
}

TEST(ForwardOrder, AProgramInTheOrderOfItsStages) {
  for (const auto& ranks : {kInTurn, kInAV}) {
    ForwardOrder order(StageRanks(ranks, 0), false);
    EXPECT_EQ(order.standing(0), 0);
    EXPECT_EQ(order.standing(1), 1);
    expect_crossing(order.cross(0, 1), 0, 1);
    const int from = ranks[3] == 0 ? 1 : 0;  // a skip, from the other rank
    expect_crossing(order.cross(from, 3), from, 3);
    EXPECT_EQ(order.standing(ranks[3]), 3);
  }
}

TEST(ForwardOrder, WhatIsComputedLateForAnEarlyStageIsTakenBehindThat) {
  ForwardOrder order(StageRanks(kInTurn, 0), false);
  order.cross(0, 1);
  expect_crossing(order.cross(1, 2), 1, 2);
  expect_crossing(order.cross(0, 1), 2, 3);  // rank 1 has gone on to its stage 3
  EXPECT_EQ(order.standing(1), 3);
}

TEST(ForwardOrder, WithoutAStageBehindTheReceiverWaits) {
  ForwardOrder order(StageRanks(kInAV, 0), false);
  order.cross(0, 1);
  order.cross(1, 2);  // on one rank
  expect_crossing(order.cross(2, 3), 2, 3);
  const auto late = order.cross(0, 2);
  expect_crossing(late, 3, 2);
  EXPECT_TRUE(late.waits());
}

TEST(ForwardOrder, WhoLooksAtALaterStagesValueGoesOnBehindThat) {
  ForwardOrder in_turn(StageRanks(kInTurn, 0), false), in_a_v(StageRanks(kInAV, 0), false);
  ForwardOrder stands(StageRanks(kInAV, 0), true);
  for (ForwardOrder* order : {&in_turn, &in_a_v, &stands}) {
    order->cross(0, 1);
    order->read(StageSet::of(1));
    EXPECT_EQ(order->standing(1), 1);
  }
  EXPECT_EQ(in_turn.standing(0), 2);
  EXPECT_EQ(in_a_v.standing(0), 3);
  EXPECT_EQ(stands.standing(0), 0);
  in_turn.cross(1, 2);
  in_turn.cross(2, 3);
  in_turn.read(StageSet::of(3));
  EXPECT_EQ(in_turn.standing(0), in_turn.behind_all());
  in_turn.read(StageSet::of(0) | StageSet::of(3));  // both ranks have it
  EXPECT_EQ(in_turn.standing(1), 3);
}

}  // namespace
}  // namespace oslo::test
