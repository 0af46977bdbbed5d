#include "checkpoint/index/checkpoint_index.h"

#include <algorithm>
#include <utility>

#include "mpu/base/error.h"

namespace oslo {
namespace {

/// Makes of equal cuts the same one: those of many ranks would take memory for ranks times ranks.
void share_cuts(const CheckpointIndex::Cuts& known, CheckpointIndex::Cuts& cuts) {
  for (size_t i = 0; i < std::min(known.size(), cuts.size()); ++i) {
    if (*known[i].cut == *cuts[i].cut) cuts[i].cut = known[i].cut;
  }
}

}  // namespace

void CheckpointIndex::add(const CheckpointIndex& other) {
  files.insert(other.files.begin(), other.files.end());
  ties.insert(other.ties.begin(), other.ties.end());
  for (const auto& [name, theirs] : other.tensors) {
    const auto [ours, fresh] = tensors.emplace(name, theirs);
    if (fresh) continue;
    OSLO_CHECK_AS(file, ours->second.shape == theirs.shape && ours->second.dtype == theirs.dtype,
                  "the ranks disagree on '", name, "': shape ",
                  c10::IntArrayRef(ours->second.shape), " and ", c10::IntArrayRef(theirs.shape));
    auto& parts = ours->second.parts;
    for (CheckpointIndex::Part part : theirs.parts) {
      share_cuts(parts.front().cuts, part.cuts);
      parts.push_back(std::move(part));
    }
  }
}

CheckpointIndex::Cuts cuts_of(const LayoutPtr& layout) {
  CheckpointIndex::Cuts cuts;
  if (!layout) return cuts;
  for (const int axis : layout->nesting()) {
    const auto& [dim, cut] = (*layout)[axis];
    // The file holds the part in one place: other places' cuts (its family) are other files'.
    if (dim >= 0) cuts.push_back({dim, layout->group(axis)->rank(), cut->among({})});
  }
  return cuts;
}

std::string to_string(const CheckpointIndex::Cuts& cuts) {
  std::string text;
  for (const auto& [dim, rank, cut] : cuts) {
    text += c10::str(text.empty() ? "" : "; ", "dim ", dim, ": part ", rank, " of ");
    for (size_t i = 0; i < cut->runs().size(); ++i) {
      const auto& [repeat, pieces] = cut->runs()[i];
      text += i == 0 ? "" : ", ";
      if (repeat > 1) text += c10::str(repeat, " x (");
      for (size_t r = 0; r < pieces.size(); ++r) text += c10::str(r == 0 ? "" : "+", pieces[r]);
      if (repeat > 1) text += ")";
    }
  }
  return text.empty() ? "whole" : text;
}

std::string describe(const RankGrid& mesh) {
  if (!mesh.rank_order()) return factors(mesh.axes());
  return c10::str("tensor_parallel_size ", mesh.size("tensor"), ", pipeline_parallel_size ",
                  mesh.size("pipeline"));
}

}  // namespace oslo
