#include "parallelizers/placement/layout/placement.h"

#include <numeric>

#include "mpu/base/error.h"

namespace oslo {

Placement Placement::shard(int64_t dim, int64_t blocks, int64_t unit) {
  OSLO_CHECK(dim >= 0 && blocks >= 1 && unit >= 1, "shard(", dim, ", blocks ", blocks, ", unit ",
             unit, "): the dimension counts from 0, blocks and unit from 1");
  Placement placement;
  placement.dim_ = dim;
  placement.blocks_ = blocks;
  placement.unit_ = unit;
  return placement;
}

Placement Placement::shard_runs(int64_t dim, std::vector<int64_t> lengths,
                                std::vector<int64_t> units) {
  OSLO_CHECK(!lengths.empty() && lengths.size() == units.size(), "shard_runs: ", lengths.size(),
             " lengths and ", units.size(), " units; give one unit a run");
  Placement placement = shard(dim);
  placement.run_lengths_ = std::move(lengths);
  placement.run_units_ = std::move(units);
  return placement;
}

Placement Placement::head_tail(int64_t dim) {
  Placement placement = shard(dim);
  placement.head_tail_ = true;
  return placement;
}

namespace {

/// A stretch of heads, then a stretch for each tail, the last rank's first.
Cut head_and_tail(int64_t size, int ranks) {
  const Cut pieces = Cut::balanced(size, 2 * ranks);
  const auto tails = pieces.sizes().begin() + ranks;
  Cut::Runs runs{{1, Cut::Sizes(pieces.sizes().begin(), tails)}};
  for (int rank = ranks - 1; rank >= 0; --rank) {
    Cut::Sizes tail(ranks, 0);
    tail[rank] = tails[ranks - 1 - rank];
    runs.push_back({1, std::move(tail)});
  }
  return Cut(std::move(runs));
}

}  // namespace

Cut Placement::cut_of(int64_t size, int ranks) const {
  if (head_tail_) return head_and_tail(size, ranks);
  if (run_lengths_.empty()) return Cut::balanced(size, ranks, blocks_, unit_);
  const int64_t total = std::accumulate(run_lengths_.begin(), run_lengths_.end(), int64_t{0});
  OSLO_CHECK(total == size, "the runs of ", to_string(), " add up to ", total,
             ", the dimension has ", size);
  Cut::Runs runs;
  for (size_t i = 0; i < run_lengths_.size(); ++i) {
    runs.push_back(Cut::balanced(run_lengths_[i], ranks, 1, run_units_[i]).runs().front());
  }
  return Cut(std::move(runs));
}

std::string Placement::to_string() const {
  if (!is_shard()) return "replicate";
  std::string text = c10::str("shard(", dim_);
  if (blocks_ > 1) text += c10::str(", blocks ", blocks_);
  if (unit_ > 1) text += c10::str(", unit ", unit_);
  for (size_t i = 0; i < run_lengths_.size(); ++i) {
    text += c10::str(i == 0 ? ", runs " : "+", run_lengths_[i]);
  }
  if (head_tail_) text += ", head and tail";
  return text + ")";
}

}  // namespace oslo
