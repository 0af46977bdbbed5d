#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <fstream>
#include <string>

namespace bench {

/// What the system counts of this process's memory.
struct SystemMemory {
  int64_t resident = 0;  ///< bytes, now
  int64_t most = 0;      ///< bytes, since the process began
  int64_t faults = 0;    ///< pages that were mapped and filled, since the process began

  static SystemMemory now() {
    int64_t addresses = 0, pages = 0;
    std::ifstream("/proc/self/statm") >> addresses >> pages;
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return {pages * 4096, used.ru_maxrss * 1024, used.ru_minflt};
  }

  /// Bytes that are resident, of which those that n processes share count 1/n: what ranks of a host
  /// have in all is the sum of theirs. Milliseconds.
  static int64_t proportional() { return 1024 * number_behind("Pss:", "/proc/self/smaps_rollup"); }

  /// The peak that `most_since` tells begins anew.
  static void forget_most() { std::ofstream("/proc/self/clear_refs") << "5"; }
  /// Bytes that were resident at most since `forget_most`.
  static int64_t most_since() { return 1024 * number_behind("VmHWM:", "/proc/self/status"); }

 private:
  static int64_t number_behind(const std::string& name, const char* file) {
    std::ifstream lines(file);
    std::string word;
    while (lines >> word && word != name) {
    }
    int64_t number = 0;
    lines >> number;
    return number;
  }
};

}  // namespace bench
