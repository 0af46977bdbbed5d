#pragma once

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <string>

namespace oslo {

/// What operators do with a weight. An embedding and a head that share one tensor differ, and so
/// may what is planned for them.
enum class UseKind {
  none,     ///< a plan says nothing of it
  product,  ///< linear, matmul, addmm, convolution: with an input
  lookup,   ///< embedding
};

/// What a plan says of one kind of use of a weight, on one mesh axis. PyTorch calls the two
/// `output_layouts` and `input_layouts`. Dimensions count from the end where they are negative.
struct AxisUse {
  enum class Result {
    reduce,        ///< a partial sum is all-reduced
    scatter,       ///< a partial sum is reduce-scattered along `dim` (arXiv 2205.05198)
    split,         ///< a whole result keeps this rank's part of `dim`: all-gather backward
    join,          ///< a partial sum waits for the others of `sum` (layout/partial_sum.h)
    join_scatter,  ///< the same, and what they are together is reduce-scattered along `dim`
  };
  Result result = Result::reduce;
  int64_t dim = 0;
  /// The input is cut there: where it comes whole, it keeps this rank's part.
  std::optional<int64_t> input_dim = {};
  bool input_head_tail = false;  ///< in the order of Placement::head_tail
  /// Of a partial sum that joins others: which of the plan's sums it belongs to, and how many
  /// products that one has; 0 while a planner looks which belong together.
  int sum = 0;
  int parts = 0;
  /// Where weight and input are both cut, by dimensions that the result has, the weight is brought
  /// to where the input is, rather than the input to the weight (2D: a table whose features are
  /// spread over the axis of the batch).
  bool brings_weight = false;

  bool joins() const { return result == Result::join || result == Result::join_scatter; }
  bool operator==(const AxisUse& other) const = default;
};

/// One kind of use: an entry for each axis of the mesh, or none.
struct WeightUse {
  c10::ArrayRef<AxisUse> axes = {};
  const char* planned = "";    ///< WeightUses::planned
  bool gathers_again = false;  ///< WeightUses::gathers_again

  bool empty() const { return axes.empty(); }
  const AxisUse& operator[](size_t axis) const { return axes[axis]; }
};

/// What a plan says of the uses of a weight, for each axis of its mesh. It belongs to the weight
/// and to what `t`, `transpose`, `to`, `alias` and `detach` make of it, and to nothing else: what
/// is computed from a weight is no weight of the plan. A use of a kind that is empty here is as of
/// a weight that no plan speaks of; one that is not says also, that the input moves to where the
/// weight's output features are cut, even if it is the larger of the two.
struct WeightUses {
  std::string planned;  ///< the weight, and who planned it, for errors
  c10::SmallVector<AxisUse, 2> product;
  c10::SmallVector<AxisUse, 2> lookup;
  /// Of products with a matrix: what is gathered for one, the weight or its input, is dropped, and
  /// gathered again in backward. One message more each, and less memory, as SUMMA has it.
  bool gathers_again = false;

  WeightUse of(UseKind kind) const {
    if (kind == UseKind::none) return {};
    const bool of_product = kind == UseKind::product;
    return {of_product ? product : lookup, planned.c_str(), of_product && gathers_again};
  }
};

}  // namespace oslo
