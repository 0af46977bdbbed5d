#pragma once

#include <optional>
#include <span>

#include "parallelizers/placement/operators/dimension_map.h"

// Attention that its author wrote by hand, as a product, a softmax and another product, over an
// axis that cuts the sequence of queries and keys. Its scores exist whole, so that nothing can go
// round; they can lie by heads (Ulysses, arXiv 2309.14509).
namespace oslo {

/// Where a product lies that is to be cut along positions again.
struct BackToPositions {
  int axis;
  int64_t dim;
  CutPtr cut;
};

/// Two operands of a product as the config's "context_attention" asks. With `ulysses` queries and
/// keys that one axis cuts along their sequences are cut along heads instead, one all-to-all each;
/// beside scores that lie so, values are, too, and what their product is brought back to is
/// returned. With the others operands stay as they are: the engine gathers the keys, and the
/// values.
///
/// Throws where a ring is asked for, and where heads cannot be cut; the same on every rank, before
/// anything moves.
std::optional<BackToPositions> cut_by_heads(const DimensionMap& map, std::span<Value> operands);

/// `product` where it is to be.
Value brought_back(Value product, const std::optional<BackToPositions>& to);

}  // namespace oslo
