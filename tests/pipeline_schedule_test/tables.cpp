// The lists of torch 2.11's schedules, action for action, and those of the papers.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "parallelizers/pipeline/schedule/order/kinds.h"
#include "parallelizers/pipeline/schedule/order/text.h"

namespace {

namespace pipeline = oslo::pipeline;

struct Golden {
  pipeline::ScheduleOptions options;
  std::vector<std::string> lists;  // by rank
};

// clang-format off
const std::vector<Golden> kGolden = {
    {{"1f1b", 4, 8, 1}, {
      "0F0 0F1 0F2 0F3 0B0 0F4 0B1 0F5 0B2 0F6 0B3 0F7 0B4 0B5 0B6 0B7",
      "1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1F5 1B3 1F6 1B4 1F7 1B5 1B6 1B7",
      "2F0 2F1 2B0 2F2 2B1 2F3 2B2 2F4 2B3 2F5 2B4 2F6 2B5 2F7 2B6 2B7",
      "3F0 3B0 3F1 3B1 3F2 3B2 3F3 3B3 3F4 3B4 3F5 3B5 3F6 3B6 3F7 3B7",
    }},
    {{"interleaved", 2, 4, 2}, {
      "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
    }},
    {{"zero_bubble", 2, 4, 2}, {
      "0F0 0F1 2F0 2F1 2I0 2W0 0F2 2I1 2W1 0F3 0I0 0W0 2F2 0I1 0W1 2F3 2I2 2W2 2I3 2W3 0I2 0W2 "
      "0I3 0W3",
      "1F0 1F1 3F0 3I0 3F1 3I1 3W0 1F2 1I0 3W1 1F3 1I1 1W0 3F2 3I2 1W1 3F3 3I3 3W2 1I2 3W3 1I3 "
      "1W2 1W3",
    }},
    {{"zero_bubble", 4, 8, 1}, {
      "0F0 0F1 0F2 0F3 0I0 0W0 0F4 0I1 0W1 0F5 0I2 0W2 0F6 0I3 0W3 0F7 0I4 0W4 0I5 0W5 0I6 0W6 "
      "0I7 0W7",
      "1F0 1F1 1F2 1I0 1F3 1I1 1W0 1F4 1I2 1W1 1F5 1I3 1W2 1F6 1I4 1W3 1F7 1I5 1W4 1I6 1W5 1I7 "
      "1W6 1W7",
      "2F0 2F1 2I0 2F2 2I1 2F3 2I2 2W0 2F4 2I3 2W1 2F5 2I4 2W2 2F6 2I5 2W3 2F7 2I6 2W4 2I7 2W5 "
      "2W6 2W7",
      "3F0 3I0 3F1 3I1 3F2 3I2 3F3 3I3 3W0 3F4 3I4 3W1 3F5 3I5 3W2 3F6 3I6 3W3 3F7 3I7 3W4 3W5 "
      "3W6 3W7",
    }},
    {{"zbv", 2, 4, 2}, {
      "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0F3 0I0 0W0 3F2 3I2 3W2 0I1 0W1 3F3 3I3 3W3 0I2 0W2 "
      "0I3 0W3",
      "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1F3 1I1 1W1 2F3 2I2 2W2 1I2 2I3 1I3 1W2 "
      "2W3 1W3",
    }},
    {{"zbv", 4, 8, 2}, {
      "0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7I0 7W0 7F1 7I1 7W1 7F2 7I2 7W2 7F3 7I3 7W3 0F7 0I0 0W0 "
      "7F4 7I4 7W4 0I1 0W1 7F5 7I5 7W5 0I2 0W2 7F6 7I6 7W6 0I3 0W3 7F7 7I7 7W7 0I4 0W4 0I5 0W5 "
      "0I6 0W6 0I7 0W7",
      "1F0 1F1 1F2 1F3 1F4 6F0 1F5 6F1 6I0 6W0 6F2 6I1 6W1 6F3 6I2 6W2 1F6 1I0 1W0 6F4 6I3 6W3 "
      "1F7 1I1 1W1 6F5 6I4 6W4 1I2 1W2 6F6 6I5 6W5 1I3 1W3 6F7 6I6 6W6 1I4 6I7 1I5 1W4 1I6 1W5 "
      "1I7 1W6 6W7 1W7",
      "2F0 2F1 2F2 5F0 2F3 5F1 2F4 5F2 5I0 5W0 5F3 5I1 5W1 2F5 2I0 2W0 5F4 5I2 5W2 2F6 2I1 2W1 "
      "5F5 5I3 5W3 2F7 2I2 2W2 5F6 5I4 5W4 2I3 2W3 5F7 5I5 5W5 2I4 5I6 2I5 5I7 2I6 2W4 2I7 2W5 "
      "5W6 5W7 2W6 2W7",
      "3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 4I0 4W0 3F4 3I0 3W0 4F4 4I1 4W1 3F5 3I1 3W1 4F5 4I2 4W2 "
      "3F6 3I2 3W2 4F6 4I3 4W3 3F7 3I3 3W3 4F7 4I4 4W4 3I4 4I5 3I5 4I6 3I6 4I7 3I7 3W4 4W5 4W6 "
      "4W7 3W5 3W6 3W7",
    }},
    {{"dualpipev", 2, 4, 2}, {
      "0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0I2 0W2 0I3 0W3",
      "1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2I3 1I3 2W3 1W3",
    }},
    {{"dualpipev", 4, 8, 2}, {
      "0F0 0F1 0F2 0F3 0F4 0F5 0F6 7F0 7I0 7W0 7F1 7I1 7W1 7F2 7I2 7W2 7F3 0F7 7B3 7F4 0B0 7B4 "
      "7F5 0B1 7B5 7F6 0B2 7B6 7F7 0B3 7B7 0I4 0W4 0I5 0W5 0I6 0W6 0I7 0W7",
      "1F0 1F1 1F2 1F3 1F4 6F0 1F5 6F1 6I0 6W0 6F2 6I1 6W1 6F3 1F6 6B2 6F4 1B0 1F7 6B3 6F5 1B1 "
      "6B4 6F6 1B2 6B5 6F7 1B3 6B6 1B4 6I7 1I5 6W7 1I6 1W5 1I7 1W6 1W7",
      "2F0 2F1 2F2 5F0 2F3 5F1 2F4 5F2 5I0 5W0 5F3 2F5 5B1 5F4 2B0 2F6 5B2 5F5 2B1 2F7 5B3 5F6 "
      "2B2 5B4 5F7 2B3 5B5 2B4 5B6 2I5 5I7 2I6 2W5 2I7 5W7 2W6 2W7",
      "3F0 4F0 3F1 4F1 3F2 4F2 3F3 4F3 3F4 4B0 4F4 3B0 3F5 4B1 4F5 3B1 3F6 4B2 4F6 3B2 3F7 4B3 "
      "4F7 3B3 4B4 3B4 4B5 3B5 4I6 3I6 4I7 3I7 4W6 3W6 4W7 3W7",
    }},
    {{"zero_bubble", 4, 8, 2}, {
      "0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 4I0 4W0 0F4 4I1 4W1 0F5 4I2 4W2 0F6 4I3 4W3 0F7 0I0 0W0 "
      "4F4 0I1 0W1 4F5 0I2 0W2 4F6 0I3 0W3 4F7 4I4 4W4 4I5 4W5 4I6 4W6 4I7 4W7 0I4 0W4 0I5 0W5 "
      "0I6 0W6 0I7 0W7",
      "1F0 1F1 1F2 1F3 5F0 5F1 5F2 5I0 5F3 5I1 5W0 1F4 5I2 5W1 1F5 5I3 5W2 1F6 1I0 5W3 1F7 1I1 "
      "1W0 5F4 1I2 1W1 5F5 1I3 1W2 5F6 5I4 1W3 5F7 5I5 5W4 5I6 5W5 5I7 5W6 1I4 5W7 1I5 1W4 1I6 "
      "1W5 1I7 1W6 1W7",
      "2F0 2F1 2F2 2F3 6F0 6F1 6I0 6F2 6I1 6F3 6I2 6W0 2F4 6I3 6W1 2F5 2I0 6W2 2F6 2I1 6W3 2F7 "
      "2I2 2W0 6F4 2I3 2W1 6F5 6I4 2W2 6F6 6I5 2W3 6F7 6I6 6W4 6I7 6W5 2I4 6W6 2I5 6W7 2I6 2W4 "
      "2I7 2W5 2W6 2W7",
      "3F0 3F1 3F2 3F3 7F0 7I0 7F1 7I1 7F2 7I2 7F3 7I3 7W0 3F4 3I0 7W1 3F5 3I1 7W2 3F6 3I2 7W3 "
      "3F7 3I3 3W0 7F4 7I4 3W1 7F5 7I5 3W2 7F6 7I6 3W3 7F7 7I7 7W4 3I4 7W5 3I5 7W6 3I6 7W7 3I7 "
      "3W4 3W5 3W6 3W7",
    }},
};
// clang-format on

std::string words_of(const std::vector<pipeline::Action>& actions) {
  std::string words;
  for (const pipeline::Action& action : actions) {
    words += (words.empty() ? "" : " ") + pipeline::to_text(action);
  }
  return words;
}

TEST(PipelineScheduleTables, ActionForAction) {
  for (const auto& [options, lists] : kGolden) {
    SCOPED_TRACE(options.kind + " on " + std::to_string(options.ranks) + " ranks");
    const pipeline::Schedule schedule = pipeline::make_schedule(options);
    for (size_t rank = 0; rank < lists.size(); ++rank) {
      EXPECT_EQ(words_of(schedule.actions[rank]), lists[rank]) << "rank " << rank;
    }
  }
}

TEST(PipelineScheduleTables, TheFirstActionsOfInterleaved) {
  const pipeline::Schedule schedule = pipeline::make_schedule({"interleaved", 4, 8, 2});
  EXPECT_EQ(words_of(schedule.actions[0])
                .rfind("0F0 0F1 0F2 0F3 4F0 4F1 4F2 4F3 0F4 0F5 0F6 4B0 0F7 4B1 ", 0),
            0u);
}

// Stages are left out where every rank has the one of its number.
TEST(PipelineScheduleTables, AsTheyArePrinted) {
  EXPECT_EQ(pipeline::to_text(pipeline::make_schedule({"1f1b", 4, 3})),
            "1f1b ranks 4 micro_batches 3 chunks 1\n"
            "rank 0: F0 F1 F2 B0 B1 B2\n"
            "rank 1: F0 F1 F2 B0 B1 B2\n"
            "rank 2: F0 F1 B0 F2 B1 B2\n"
            "rank 3: F0 B0 F1 B1 F2 B2\n");
  EXPECT_EQ(pipeline::to_text(pipeline::make_schedule({"naive", 2, 2})),
            "naive ranks 2 micro_batches 2 chunks 1\n"
            "rank 0: F0 B0 F1 B1\n"
            "rank 1: F0 B0 F1 B1\n");
  EXPECT_EQ(pipeline::to_text(pipeline::make_schedule({"gpipe", 1, 2})),
            "gpipe ranks 1 micro_batches 2 chunks 1\n"
            "rank 0: F0 F1 B0 B1\n");
  EXPECT_EQ(pipeline::to_text(pipeline::make_schedule({"zbv", 1, 1})),
            "zbv ranks 1 micro_batches 1 chunks 2\n"
            "rank 0: 0F0 1F0 1I0 1W0 0I0 0W0\n");
}

}  // namespace
