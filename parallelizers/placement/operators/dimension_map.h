#pragma once

#include <c10/util/SmallVector.h>

#include <span>
#include <string>
#include <string_view>

#include "mpu/base/error.h"
#include "parallelizers/placement/layout/value.h"
#include "parallelizers/placement/layout/weight_uses.h"

namespace oslo {

/// How the dimensions of an operator's operands and results correspond, as in einsum: one letter a
/// dimension. `..K, KN -> ..N` says all that tensor, sequence, 2D and ZeRO parallelism need to know
/// of a linear layer. '-' is a dimension of size 1 that stretches to whatever the others have.
struct DimensionMap {
  c10::SmallVector<std::string, 4> operands;
  c10::SmallVector<std::string, 2> results;
  /// Letters along which the operator mixes elements in a way that is not a sum: never cut.
  std::string whole = {};
  /// Those of `whole` whose gathering is the way that the operator is done over ranks (keys and
  /// values of attention), and not told as a loss.
  std::string brought = {};

  /// Dimension `letter` of operand `operand` is `factor` times as long as in the other operands
  /// (query heads over key heads): so are its pieces.
  static constexpr int kResult = -1;
  struct Scale {
    int operand;  ///< or kResult
    char letter;
    int64_t factor;
  };
  c10::SmallVector<Scale, 1> scales = {};

  /// The factor of `letter` in `operand`; 1 unless `scales` says otherwise.
  int64_t factor(size_t operand, char letter) const;
};

/// Operands whose dimensions do not fit each other. The door turns it into the error that one
/// device gives.
class ShapeMismatch : public Error {
 public:
  using Error::Error;
};

/// `count` letters from 'a' on, for dimensions that all operands share. After 'z' come characters
/// that no rule uses; there are 159 in all, and more are refused.
std::string letters(int64_t count);

inline bool contains(std::string_view letters, char letter) {
  return letters.find(letter) != std::string_view::npos;
}

/// What the engine decided, axis by axis: the letter that stays cut, and whether results that lack
/// it are partial sums.
class Resolution {
 public:
  explicit Resolution(ContextPtr context)
      : context_(std::move(context)), axes_(context_ ? context_->mesh().axes() : 0) {}

  /// The layout of a result with these letters.
  LayoutPtr layout_of(std::string_view letters) const;
  /// The axes on which one of these letters stays cut.
  Axes axes_keeping(std::string_view letters) const;
  /// The axis on which this letter stays cut, the only one; -1 without one.
  int axis_keeping(char letter) const;
  /// The axes on which another letter stays cut: there a result with these letters is a partial
  /// sum.
  Axes axes_beside(std::string_view letters) const;
  /// Wraps a local result up: finishes partial sums (planned_results.h), adds the layout.
  /// `may_wait`: the rule takes a sum that the plan has join others as it is (partial_sum.h).
  Value finish(at::Tensor local, std::string_view letters, bool may_wait = false) const;
  /// What the plan says of the weight among the operands.
  void set_use(WeightUse use) { use_ = use; }

  struct Axis {
    char letter = 0;  ///< 0: nothing is cut here
    CutPtr cut;
  };
  const ContextPtr& context() const { return context_; }
  const Mesh& mesh() const { return context_->mesh(); }
  const Axis& axis(int i) const { return axes_[i]; }
  Axis& axis(int i) { return axes_[i]; }
  void scale_results(char letter, int64_t factor) {
    scaled_ = letter;
    factor_ = factor;
  }

 private:
  ContextPtr context_;
  c10::SmallVector<Axis, 2> axes_;
  char scaled_ = 0;
  int64_t factor_ = 1;
  WeightUse use_;
};

enum class Keep {
  cheapest,      ///< the letter that moves the fewest bytes
  first_operand  ///< whatever the first operand has (in-place operators)
};

/// The engine. For each mesh axis it finds the letters that the operands are cut on, keeps one and
/// moves the operands accordingly:
///   - an operand cut on another letter, or otherwise, is gathered; one that is cut in other
///   pieces,
///     which come from no parameter, exchanges what has another owner;
///   - an operand that has the letter whole keeps its part;
///   - an operand without the letter is copied: every rank uses it for something else.
/// A result without the kept letter is a partial sum. Letters in `whole` are gathered. Where an
/// axis cuts a dimension inside another, the outer one comes first. Beside a weight that the plan
/// speaks of the input is first cut where the plan says, and moves to where the weight's part of
/// the result is, also where moving the weight would be cheaper. Operands are changed in place;
/// undefined ones are left alone. Throws ShapeMismatch, before anything moves, when a letter has
/// two sizes; those in `whole` are left to the operator.
Resolution resolve(const DimensionMap& map, std::span<Value> operands, Keep keep = Keep::cheapest);

}  // namespace oslo
