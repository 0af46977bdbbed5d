#pragma once

#include <cstdint>
#include <filesystem>

namespace oslo {

// Several checkpoints of one run in a folder of their own, a series:
//
//   run/step-000100/   a checkpoint
//   run/step-000200/   another
//   run/latest         "step-000200"

/// The folder of a step's checkpoint. Throws `Error` for a step below 0, and where `series` is a
/// checkpoint itself.
std::filesystem::path step_folder(const std::filesystem::path& series, int64_t step);

/// Makes a step's checkpoint, which is in place, the one that is loaded: replaces `latest` at once.
/// Then removes all but the `keep` newest (0: none is removed), and what killed saves left. What no
/// save wrote stays, links to checkpoints among it.
void publish_step(const std::filesystem::path& series, int64_t step, int keep);

/// The checkpoint to read for `folder`: itself, or of a series the one that `latest` names; where
/// that is not there, the one of the highest step that is complete. Throws `Error` for a series
/// without any.
std::filesystem::path latest_checkpoint(const std::filesystem::path& folder);

}  // namespace oslo
