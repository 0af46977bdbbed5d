#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace oslo {

/// A part of a step between two events (a segment begins, or ends, or runs again).
struct StepPhase {
  std::string name;   ///< "forward of h.0"
  int64_t most = 0;   ///< bytes that a rank held in it, at the most, where everything runs again
  bool once = false;  ///< of the first step alone, which keeps nothing: a segment was tried
};

/// One run of a segment in a step.
struct SegmentRun {
  int segment = 0;
  int64_t let_go = 0;   ///< bytes that it saved and let go at its end
  double work = 0;      ///< what running it again takes (work_of)
  size_t ended = 0;     ///< the first phase without them
  size_t reran = kNot;  ///< the phase in which it ran again; kNot: none did
  static constexpr size_t kNot = SIZE_MAX;
};

/// What a rank holds in the course of a step in which all segments are computed again.
struct StepProfile {
  std::vector<StepPhase> phases;
  std::vector<SegmentRun> runs;
  int64_t kept = 0;  ///< bytes of the forward's that wait for backward, where it was foreseen
};

/// Which segments keep what they saved, and the most that a rank then holds.
struct KeptSegments {
  std::vector<bool> kept;
  int64_t peak = 0;
  std::string at;  ///< the phase of the peak
};

/// The most that can be kept within a budget of bytes: segments one by one, first those whose
/// rerun takes most for a byte, later ones before earlier ones, until the next does not fit. What a
/// smaller budget keeps a larger one keeps, too, so that the peak does not rise when it falls. A
/// segment that is kept adds what it let go to all phases between its end and its rerun. Where not
/// even the profile itself fits nothing is kept, and `peak` is the least that can be. `segments`:
/// how many.
KeptSegments choose_kept(const StepProfile& profile, size_t segments, int64_t budget);

}  // namespace oslo
