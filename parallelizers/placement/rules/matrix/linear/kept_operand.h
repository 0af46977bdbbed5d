#pragma once

#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <optional>
#include <span>
#include <vector>

#include "mpu/base/ledger.h"
#include "mpu/base/node_ptr.h"
#include "parallelizers/placement/layout/value.h"

namespace oslo {

/// An operand of a product that was gathered for it, and is gathered again in backward.
struct GatheredAgain {
  at::Tensor part;               ///< as it came
  LayoutPtr from, to;            ///< before and after; null: whole
  std::vector<int64_t> strides;  ///< of `part` (Value::strides)
  Asker asker;

  /// The whole of the part, as gradients want it. Collective.
  at::Tensor gather(const at::Tensor& kept) const;
};

/// What the two operands of a product were before it gathered them.
class PartsOfProduct {
 public:
  /// Of operands that are about to be resolved: cuts inputs as the plan has them. Nothing where it
  /// does not have what is gathered gathered again.
  explicit PartsOfProduct(std::span<Value> operands);

  /// Whether the plan has what is gathered gathered again.
  bool wanted() const { return !before_.empty(); }

  /// How operand `i` is gathered again that was resolved to `after`; none where it was not
  /// gathered.
  std::optional<GatheredAgain> again(size_t i, const Value& after) const;

  /// Counts, in a run on shapes that foresees backward, what that will gather again.
  void foresee(std::span<const Value> after) const;

 private:
  c10::SmallVector<Value, 2> before_;
};

/// An operand that a node keeps for backward: itself, or the part that it was gathered from.
class KeptOperand {
 public:
  KeptOperand() = default;
  KeptOperand(const at::Tensor& operand, std::optional<GatheredAgain> again);

  /// As it was in forward. Throws where it, or its part, has been written to since, and where
  /// somebody asks for the gradient of a gradient of what is gathered again.
  at::Tensor unpack(const NodePtr& node) const;
  /// Lets go of the graph behind it; its version goes on being checked.
  void leave_graph(const NodePtr& node);
  void reset();

 private:
  torch::autograd::SavedVariable saved_;
  std::optional<GatheredAgain> again_;
};

}  // namespace oslo
