#pragma once

#include <string>
#include <vector>

#include "parallelizers/pipeline/schedule/order/schedule.h"

namespace oslo::pipeline {

/// What a schedule is made of.
struct ScheduleOptions {
  std::string kind = "1f1b";
  int ranks = 1;
  int micro_batches = 1;
  int chunks = 0;  ///< stages a rank; 0: what the kind has unless told, see below
};

/// The names that `make_schedule` knows: naive, gpipe, 1f1b, interleaved, zero_bubble, zbv,
/// dualpipev.
std::vector<std::string> schedule_kinds();

/// The number of chunks a rank has under `kind` where nobody says: 2 under interleaved, zbv and
/// dualpipev, otherwise 1. Throws for a name that is none.
int default_chunks(const std::string& kind);

/// The rank of each stage under `kind`, of which a rank has `chunks` (0: as above): in turn, or in
/// a V. Throws for a kind that is none, or does not have so many.
std::vector<int> rank_of_stage(const std::string& kind, int ranks, int chunks);

/// The action lists of all ranks. A pure function; every rank gets the same. Throws `oslo::Error`
/// for a kind, or sizes, that cannot be, naming the value and what would do.
///
/// - naive: a micro-batch after the other, nothing overlaps. 1 chunk.
/// - gpipe: all forwards, then all backwards (Huang et al. 2019). 1 chunk.
/// - 1f1b: forwards and backwards alternate (PipeDream-Flush, Narayanan et al. 2021). 1 chunk.
/// - interleaved: 1f1b over `chunks` >= 2 stages a rank, stage s on rank s mod ranks (Narayanan et
///   al. 2021). Micro-batches run in max(1, micro_batches / ranks) rounds of equal size.
/// - zero_bubble: ZB-H1 (Qi et al. 2023), with any number of chunks: the weights' part of a
/// backward
///   runs where a rank would wait. With 2 chunks or more, rounds as under interleaved.
/// - zbv: ZB-V (Qi et al. 2024). 2 chunks: rank r has stages r and 2 * ranks - 1 - r.
/// - dualpipev: DualPipe over V-shaped stages (DeepSeek-AI 2024). 2 chunks as zbv;
///   micro_batches >= 2 * ranks.
///
/// Fewer micro-batches than ranks run under every kind but dualpipev.
Schedule make_schedule(const ScheduleOptions& options);

/// The same lists without the backward passes: an evaluation.
Schedule forward_only(const Schedule& schedule);

}  // namespace oslo::pipeline
