#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

// The gathers of every catalogue model on every mesh, as tests/data/gathers.json records them: by
// operator, calls in one training step and one evaluation. OSLO_UPDATE_GOLDEN=1 records models that
// are new and numbers that went down. A number that went up always fails; to accept it all the
// same, remove its lines from the file first.
namespace catalogue {

using GatherCalls = std::map<std::string, int64_t>;  ///< by operator

inline std::filesystem::path gather_record_path() {
  return std::filesystem::path(OSLO_SOURCE_DIR) / "tests/data/gathers.json";
}

/// Several test programs may read and write the file at once.
class GatherRecordLock {
 public:
  GatherRecordLock() : folder_(open(gather_record_path().parent_path().c_str(), O_RDONLY)) {
    flock(folder_, LOCK_EX);
  }
  ~GatherRecordLock() { close(folder_); }
  GatherRecordLock(const GatherRecordLock&) = delete;
  GatherRecordLock& operator=(const GatherRecordLock&) = delete;

 private:
  int folder_;
};

inline nlohmann::json read_gather_record() {
  std::ifstream in(gather_record_path());
  return in ? nlohmann::json::parse(in) : nlohmann::json::object();
}

inline int64_t total_of(const GatherCalls& calls) {
  return std::accumulate(calls.begin(), calls.end(), int64_t{0},
                         [](int64_t sum, const auto& item) { return sum + item.second; });
}

/// `table`: the plan, to be shown beside a number that does not fit.
inline void expect_recorded_gathers(const std::string& model, const std::string& mesh,
                                    const GatherCalls& now, const std::string& table) {
  const GatherRecordLock lock;
  const char* update = std::getenv("OSLO_UPDATE_GOLDEN");
  const bool may_write = update != nullptr && std::string(update) == "1";
  nlohmann::json record = read_gather_record();
  const bool known = record.contains(model) && record[model].contains(mesh);
  const auto recorded = known ? record[model][mesh].get<GatherCalls>() : GatherCalls();
  const int64_t calls = total_of(now), before = total_of(recorded);
  if (known && calls > before) {
    ADD_FAILURE() << model << " on " << mesh << " gathers " << calls << " times, " << before
                  << " are recorded; the number may only go down\n"
                  << table;
    return;
  }
  if (known && now == recorded) return;
  if (!may_write) {
    ADD_FAILURE() << model << " on " << mesh << " gathers " << calls << " times, "
                  << (known ? std::to_string(before) + " are recorded: they became fewer or others"
                            : std::string("nothing is recorded"))
                  << "; run with OSLO_UPDATE_GOLDEN=1 to record it in tests/data/gathers.json\n"
                  << table;
    return;
  }
  record[model][mesh] = now;
  std::ofstream(gather_record_path(), std::ios::trunc) << record.dump(2) << "\n";
}

}  // namespace catalogue
