#include "parallelizers/pipeline/schedule/order/kinds.h"

#include <algorithm>

#include "mpu/base/error.h"
#include "parallelizers/pipeline/schedule/order/patterns.h"

namespace oslo::pipeline {
namespace {

struct Kind {
  const char* name;
  int least_chunks, most_chunks, default_chunks;
  bool v_shaped;
  std::vector<Action> (*list_of)(const PatternSizes&);
};

constexpr int kAnyChunks = 1 << 20;

std::vector<Action> naive(const PatternSizes& sizes) {
  return alternating(sizes, {.warm_up = 0});
}

std::vector<Action> gpipe(const PatternSizes& sizes) {
  return alternating(sizes, {.warm_up = sizes.micro_batches});
}

std::vector<Action> one_forward_one_backward(const PatternSizes& sizes) {
  return alternating(sizes, {.warm_up = sizes.ranks - 1 - sizes.rank});
}

// The forwards of all stages but a rank's last, which its first backward comes after.
int earlier_chunks(const PatternSizes& sizes) {
  return (sizes.chunks - 1) * micro_batches_a_round(sizes.ranks, sizes.micro_batches);
}

std::vector<Action> interleaved(const PatternSizes& sizes) {
  return alternating(sizes,
                     {.warm_up = earlier_chunks(sizes) + 2 * (sizes.ranks - 1 - sizes.rank)});
}

std::vector<Action> zero_bubble(const PatternSizes& sizes) {
  return alternating(sizes, {.warm_up = earlier_chunks(sizes) + sizes.ranks - 1 - sizes.rank,
                             .split = true,
                             .weights_lag = sizes.rank});
}

constexpr Kind kKinds[] = {
    {"naive", 1, 1, 1, false, naive},
    {"gpipe", 1, 1, 1, false, gpipe},
    {"1f1b", 1, 1, 1, false, one_forward_one_backward},
    {"interleaved", 2, kAnyChunks, 2, false, interleaved},
    {"zero_bubble", 1, kAnyChunks, 1, false, zero_bubble},
    {"zbv", 2, 2, 2, true, zero_bubble_v},
    {"dualpipev", 2, 2, 2, true, dual_pipe_v},
};

const Kind& kind_of(const std::string& name) {
  const Kind* const found = std::find_if(std::begin(kKinds), std::end(kKinds),
                                         [&](const Kind& kind) { return name == kind.name; });
  if (found == std::end(kKinds)) {
    std::string known;
    for (const Kind& kind : kKinds) known += std::string(known.empty() ? "" : ", ") + kind.name;
    fail("schedule kind \"", name, "\" is unknown; there are ", known);
  }
  return *found;
}

void check_chunks(const Kind& kind, int chunks) {
  if (kind.most_chunks == 1) {
    OSLO_CHECK(chunks == 1, kind.name, " has 1 stage a rank, not ", chunks,
               "; interleaved, zero_bubble, zbv and dualpipev have more");
  } else if (kind.most_chunks == kind.least_chunks) {
    OSLO_CHECK(chunks == kind.most_chunks, kind.name, " has ", kind.most_chunks,
               " stages a rank, not ", chunks);
  } else {
    OSLO_CHECK(chunks >= kind.least_chunks && chunks <= kind.most_chunks, kind.name,
               " has at least ", kind.least_chunks, " stages a rank, not ", chunks,
               kind.least_chunks == 2 ? "; 1f1b has 1" : "");
  }
}

// A round that is shorter than the others would leave ranks at different places of their lists.
void check_rounds(const Kind& kind, const ScheduleOptions& options) {
  const auto fill_rounds = [&](int micro_batches) {
    return micro_batches % std::max(1, micro_batches / options.ranks) == 0;
  };
  if (fill_rounds(options.micro_batches)) return;
  int below = options.micro_batches - 1;
  while (!fill_rounds(below)) --below;
  int above = options.micro_batches + 1;
  while (!fill_rounds(above)) ++above;
  fail(kind.name, ": ", options.micro_batches, " micro-batches do not fill ",
       options.micro_batches / options.ranks, " equal rounds over ", options.ranks, " ranks; take ",
       below, " or ", above);
}

}  // namespace

std::vector<std::string> schedule_kinds() {
  std::vector<std::string> names;
  for (const Kind& kind : kKinds) names.push_back(kind.name);
  return names;
}

int default_chunks(const std::string& kind) {
  return kind_of(kind).default_chunks;
}

std::vector<int> rank_of_stage(const std::string& name, int ranks, int chunks) {
  const Kind& kind = kind_of(name);
  if (chunks == 0) chunks = kind.default_chunks;
  check_chunks(kind, chunks);
  std::vector<int> found;
  for (int stage = 0; stage < ranks * chunks; ++stage) {
    found.push_back(kind.v_shaped ? std::min(stage, 2 * ranks - 1 - stage) : stage % ranks);
  }
  return found;
}

Schedule make_schedule(const ScheduleOptions& options) {
  const Kind& kind = kind_of(options.kind);
  OSLO_CHECK(options.ranks >= 1, "a schedule of ", options.ranks, " ranks: at least 1 is needed");
  OSLO_CHECK(options.micro_batches >= 1, "a schedule of ", options.micro_batches,
             " micro-batches: at least 1 is needed");
  OSLO_CHECK(options.chunks >= 0, "a schedule of ", options.chunks,
             " stages a rank: at least 1 is needed");
  const int chunks = options.chunks == 0 ? kind.default_chunks : options.chunks;
  check_chunks(kind, chunks);
  if (chunks > 1 && !kind.v_shaped) check_rounds(kind, options);
  if (kind.list_of == dual_pipe_v) {
    OSLO_CHECK(options.micro_batches >= 2 * options.ranks, kind.name, ": ", options.micro_batches,
               " micro-batches are fewer than its ", 2 * options.ranks, " stages on ",
               options.ranks, " ranks; take at least ", 2 * options.ranks, ", or zbv");
  }

  Schedule schedule;
  schedule.kind = options.kind;
  schedule.ranks = options.ranks;
  schedule.micro_batches = options.micro_batches;
  schedule.chunks = chunks;
  schedule.rank_of_stage = rank_of_stage(options.kind, options.ranks, chunks);
  for (int rank = 0; rank < options.ranks; ++rank) {
    schedule.actions.push_back(kind.list_of({options.ranks, options.micro_batches, chunks, rank}));
  }
  return schedule;
}

Schedule forward_only(const Schedule& schedule) {
  Schedule forwards = schedule;
  for (std::vector<Action>& actions : forwards.actions) {
    std::erase_if(actions, [](const Action& action) { return action.pass != Pass::forward; });
  }
  return forwards;
}

}  // namespace oslo::pipeline
