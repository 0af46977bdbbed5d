#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace oslo {

// Several checkpoints of one run in a folder of their own, a series:
//
//   run/step-000100/   a checkpoint, whose series.json says when it was saved
//   run/step-000200/   another
//   run/latest         "step-000200"
//
// They are ordered by the run's own history, not by their numbers: a run that went back to step 100
// and saved step 110 is newer than step 200, which it left.

/// {"number": 4, "after": "step-000100"}: the save's number in the series, and what `latest` named
/// before it. Checkpoints without one are older than all that have one, and
/// follow each other by their steps.
inline constexpr char kSeriesName[] = "series.json";

/// The folder of a step's checkpoint. Throws `Error` for a step below 0, and where `series` is a
/// checkpoint itself.
std::filesystem::path step_folder(const std::filesystem::path& series, int64_t step);

/// The series.json of a checkpoint that is saved next. Throws `Error` naming the file where that of
/// another checkpoint cannot be read.
nlohmann::json next_in_series(const std::filesystem::path& series);

/// Makes a step's checkpoint the one that is loaded: `commit` gives it its name, and `latest` is
/// replaced at once. Other jobs that publish into the series wait meanwhile, so that none takes the
/// step for one that its run left. Then removes all but `keep` (0: none is removed), and what
/// killed saves left. First stays what the run came by, this step, the one it was saved after, the
/// one before that; then what it left when it went back, the last saved first. What no save wrote
/// stays, links to checkpoints among it.
void publish_step(const std::filesystem::path& series, int64_t step, int keep,
                  const std::function<void()>& commit);

struct LatestCheckpoint {
  std::filesystem::path path;
  std::string warning;  ///< a line for whoever loads; empty where there is nothing to say
};

/// The checkpoint to read for `folder`: itself, or of a series the one that `latest` names; where
/// that is not there, the complete one that was saved last, with a warning. Throws `Error` for a
/// series without any.
LatestCheckpoint latest_checkpoint(const std::filesystem::path& folder);

}  // namespace oslo
