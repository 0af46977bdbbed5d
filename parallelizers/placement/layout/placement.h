#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallelizers/placement/layout/cuts/cut.h"

namespace oslo {

/// What a plan says about a tensor on one mesh axis, before its sizes are known: every rank holds
/// all of it, or dimension `dim` is cut over the ranks. The sizes follow by `cut_of`: balanced, in
/// whole units, uneven where they do not divide, empty where there are more ranks than units.
class Placement {
 public:
  static Placement replicate() { return {}; }

  /// `blocks` runs of equal length, each cut over the ranks in whole `unit`s (a head).
  static Placement shard(int64_t dim, int64_t blocks = 1, int64_t unit = 1);

  /// Runs of these lengths, each cut in whole units of its own (query, key and value of grouped
  /// query attention).
  static Placement shard_runs(int64_t dim, std::vector<int64_t> lengths,
                              std::vector<int64_t> units);

  /// Of 2n equal pieces of the dimension over n ranks, rank r has pieces r and 2n - 1 - r: of a
  /// sequence to which a causal mask belongs each has as much to do (Megatron's and Striped
  /// Attention's order, arXiv 2311.09431).
  static Placement head_tail(int64_t dim);

  bool is_shard() const { return dim_ >= 0; }
  int64_t dim() const { return dim_; }

  /// How a dimension of `size` elements is cut over `ranks`. Throws when it does not divide into
  /// the runs or units.
  Cut cut_of(int64_t size, int ranks) const;

  /// "replicate", "shard(0)", "shard(0, blocks 3)", "shard(0, unit 16)", "shard(0, runs 8+2+2)",
  /// "shard(0, head and tail)".
  std::string to_string() const;

  bool operator==(const Placement& other) const = default;

 private:
  int64_t dim_ = -1;
  int64_t blocks_ = 1;
  int64_t unit_ = 1;
  std::vector<int64_t> run_lengths_;
  std::vector<int64_t> run_units_;
  bool head_tail_ = false;
};

}  // namespace oslo
