#include "parallelizers/memory/budget/step_profile.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace oslo {
namespace {

/// Bytes held in each phase where these segments are kept.
std::vector<int64_t> held(const StepProfile& profile, const std::vector<bool>& kept) {
  // Sums over intervals, by what changes at their ends.
  std::vector<int64_t> change(profile.phases.size() + 1);
  for (const SegmentRun& run : profile.runs) {
    if (!kept[run.segment]) continue;
    const size_t end = std::min(run.reran, profile.phases.size());
    if (run.ended >= end) continue;
    change[run.ended] += run.let_go;
    change[end] -= run.let_go;
  }
  std::vector<int64_t> bytes;
  int64_t added = 0;
  for (size_t i = 0; i < profile.phases.size(); ++i) {
    added += change[i];
    const StepPhase& phase = profile.phases[i];
    bytes.push_back(phase.most + (phase.once ? 0 : added));
  }
  return bytes;
}

KeptSegments with(const StepProfile& profile, std::vector<bool> kept) {
  const std::vector<int64_t> bytes = held(profile, kept);
  KeptSegments choice;
  choice.kept = std::move(kept);
  const auto most = std::max_element(bytes.begin(), bytes.end());
  if (most == bytes.end()) return choice;
  choice.peak = *most;
  choice.at = profile.phases[most - bytes.begin()].name;
  return choice;
}

/// Segments, the most worthwhile first. Worth is rounded to eighths of a power of two: equal layers
/// are equal, although the last one may have a little less to save.
std::vector<int> by_worth(const StepProfile& profile, size_t segments) {
  std::vector<double> work(segments), bytes(segments);
  for (const SegmentRun& run : profile.runs) {
    work[run.segment] += run.work;
    bytes[run.segment] += static_cast<double>(run.let_go);
  }
  const auto worth = [&](int i) {
    return std::round(8 * std::log2((1 + work[i]) / std::max(1.0, bytes[i])));
  };
  std::vector<int> order(segments);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int a, int b) { return worth(a) != worth(b) ? worth(a) > worth(b) : a > b; });
  return order;
}

}  // namespace

KeptSegments choose_kept(const StepProfile& profile, size_t segments, int64_t budget) {
  KeptSegments choice = with(profile, std::vector<bool>(segments));
  if (choice.peak > budget) return choice;
  for (const int next : by_worth(profile, segments)) {
    std::vector<bool> kept = choice.kept;
    kept[next] = true;
    KeptSegments more = with(profile, std::move(kept));
    if (more.peak > budget) break;
    choice = std::move(more);
  }
  return choice;
}

}  // namespace oslo
