// A rank of a job is killed, stopped, throws or exits, at any moment: every other rank ends within
// the time limit with an error that names that rank, by its number in the world, and no other. All
// of: kinds of jobs, transports, victims, ways to die. OSLO_TEST_FAULTS says how many of them; the
// first are each kind of job with each way to die.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/faults_process_test/running_job.h"

namespace oslo::test {
namespace {

/// Each kind of job with each way to die, over transports and of victims that go round: rank 0,
/// which hosts the store, is stopped in a pipeline.
constexpr size_t kFirst = kJobs.size() * kWays.size();

/// All of them, those first.
std::vector<Fault> all_faults() {
  std::mt19937 random(24);
  std::vector<Fault> faults, rest;
  for (size_t job = 0; job < kJobs.size(); ++job) {
    for (size_t way = 0; way < kWays.size(); ++way) {
      for (size_t transport = 0; transport < kTransports.size(); ++transport) {
        for (size_t victim = 0; victim < kRanks; ++victim) {
          const Fault fault{kJobs[job],
                            kTransports[transport],
                            kWays[way],
                            static_cast<int>(victim),
                            static_cast<int>(random() % 20),
                            static_cast<unsigned>(random() % 300'000)};
          const bool first = transport == (job + way) % kTransports.size() &&
                             victim == (job + 2 * way + 3 + job / kRanks) % kRanks;
          (first ? faults : rest).push_back(fault);
        }
      }
    }
  }
  std::shuffle(rest.begin(), rest.end(), random);
  faults.insert(faults.end(), rest.begin(), rest.end());
  return faults;
}

/// What the ranks of a job that was killed took, in milliseconds, and of how many it was a second.
struct Times {
  std::vector<double> each;
  void add(double time) { each.push_back(time); }
  std::string to_text() const {
    return c10::str(std::ranges::count_if(each, [](double time) { return time <= 1000; }), " of ",
                    each.size(), " within a second, the slowest behind ",
                    each.empty() ? 0 : std::ranges::max(each), " ms");
  }
};

TEST(Faults, TheRankThatFailedIsNamedByEveryOther) {
  const std::vector<Fault> all = all_faults();
  const std::string asked = text_of("OSLO_TEST_FAULTS");
  const size_t count = asked == "all"  ? all.size()
                       : asked.empty() ? kFirst
                                       : std::min<size_t>(std::stoul(asked), all.size());
  // Jobs whose rank is stopped wait until the time limit is over: several at a time, beside others.
  constexpr size_t kWaiting = 7, kAtATime = 3;
  std::deque<size_t> quick, waiting;
  for (size_t i = 0; i < count; ++i) (all[i].way == "stop" ? waiting : quick).push_back(i);
  using Jobs = std::vector<std::pair<size_t, std::unique_ptr<RunningJob>>>;
  const auto start = [&](std::deque<size_t>& some, size_t most) {
    Jobs jobs;
    for (; !some.empty() && jobs.size() < most; some.pop_front()) {
      jobs.emplace_back(some.front(), std::make_unique<RunningJob>(all[some.front()]));
    }
    return jobs;
  };
  Times one_host, hosts;
  size_t named_rightly = 0;
  const auto check = [&](const Jobs& jobs) {
    for (const auto& [i, job] : jobs) {
      SCOPED_TRACE(c10::str("fault ", i, ": ", all[i].to_text()));
      named_rightly += job->check() ? 1 : 0;
      if (all[i].way != "kill") continue;
      const bool one = all[i].transport == "auto" || all[i].transport == "gloo";
      (one ? one_host : hosts).add(job->slowest());
      if (job->slowest() > 1000) {
        std::cout << "behind " << job->slowest() << " ms: fault " << i << ", " << all[i].to_text()
                  << "\n";
      }
    }
  };
  while (!quick.empty() || !waiting.empty()) {
    const Jobs stopped = start(waiting, kWaiting);
    const size_t beside = waiting.empty() ? quick.size() : 2 * kWaiting;
    for (size_t done = 0; done < beside && !quick.empty(); done += kAtATime) {
      check(start(quick, kAtATime));
    }
    check(stopped);
  }
  std::cout << named_rightly << " of " << count
            << " faults named rightly; killed ranks of one host: " << one_host.to_text()
            << "; of several: " << hosts.to_text() << "\n";
  RecordProperty("killed_ranks_of_one_host", one_host.to_text());
}

}  // namespace
}  // namespace oslo::test
