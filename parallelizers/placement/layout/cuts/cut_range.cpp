#include "parallelizers/placement/layout/cuts/cut_range.h"

#include <algorithm>
#include <utility>

namespace oslo {

std::optional<CutRange> range_of_stretches(const Cut& cut, int64_t start, int64_t length,
                                           int rank) {
  Cut::Runs inside;
  int64_t at = 0, local = 0, local_start = 0, local_length = 0;
  bool begun = start == 0, ended = false;
  for (const Cut::Run& run : cut.runs()) {
    int64_t stretch = 0;
    for (const int64_t piece : run.pieces) stretch += piece;
    for (int64_t i = 0; i < run.repeat; ++i) {
      if (at == start) {
        begun = true;
        local_start = local;
      }
      if (at >= start && at + stretch <= start + length) {
        if (!inside.empty() && inside.back().pieces == run.pieces) {
          ++inside.back().repeat;
        } else {
          inside.push_back({1, run.pieces});
        }
        local_length += run.pieces[rank];
      } else if (at < start + length && at + stretch > start) {
        return std::nullopt;  // the range begins or ends inside a stretch
      }
      at += stretch;
      local += run.pieces[rank];
      ended |= at == start + length;
    }
  }
  if (!begun || !ended || inside.empty()) return std::nullopt;
  return CutRange{std::make_shared<Cut>(std::move(inside), cut.origin(), cut.origin_scale()),
                  local_start, local_length};
}

CutRange range_of_elements(const Cut& cut, int64_t start, int64_t length, int rank) {
  const int64_t end = start + length;
  Cut::Runs inside;
  int64_t at = 0, before = 0, held = 0;
  for (const Cut::Run& run : cut.runs()) {
    for (int64_t i = 0; i < run.repeat; ++i) {
      Cut::Sizes pieces;
      for (size_t r = 0; r < run.pieces.size(); ++r) {
        const int64_t piece_end = at + run.pieces[r];
        pieces.push_back(std::max<int64_t>(0, std::min(end, piece_end) - std::max(start, at)));
        if (static_cast<int>(r) == rank) {
          before += std::min(run.pieces[r], std::max<int64_t>(0, start - at));
          held += pieces.back();
        }
        at = piece_end;
      }
      inside.push_back({1, std::move(pieces)});
    }
  }
  return {std::make_shared<Cut>(std::move(inside), cut.origin(), cut.origin_scale()), before, held};
}

}  // namespace oslo
