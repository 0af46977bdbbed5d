#pragma once

#include <string>
#include <vector>

namespace oslo::tool {

struct RunOptions {
  int ranks = 0;
  int grace_seconds = 5;
  bool prefix = true;
  bool gpu_per_rank = false;       ///< whether `gpus` are to be found (rank_options.h)
  bool keeps_freed_memory = true;  ///< by the settings of glibc's malloc, unless the user has any
  std::vector<std::string> gpus;   ///< of each rank, for CUDA_VISIBLE_DEVICES; empty: as it is
  std::string path;                ///< the file to execute
};

/// Starts `argv` on `options.ranks` ranks, passes their output on, and returns the exit code of the
/// whole: 0 when every rank ended with 0, that of the first rank that failed, 128 + n when signal n
/// ended that rank or this process. When it returns, every process of every rank's process group is
/// gone; should this process be killed, they go with it.
int run_ranks(const RunOptions& options, const std::vector<std::string>& argv);

}  // namespace oslo::tool
