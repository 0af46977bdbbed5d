#pragma once

#include <span>
#include <string>
#include <vector>

#include "parallelizers/placement/operators/dimension_map.h"

namespace oslo {

/// A dimension map as people write it, for any number of leading dimensions: `..K, KN -> ..N`.
/// Operands are separated by commas, results too; blanks do not count. A letter is one dimension,
/// ".." as many as the tensor has beside its letters, aligned from the right where operands have
/// different numbers of them, and stretched where one of them has size 1, as in LibTorch's
/// broadcasting. '-' is a dimension of one element, or one that only the result has.
class MapText {
 public:
  /// `whole`: letters (or "..") along which nothing may be cut. Throws where the text is none of
  /// this, names the same letter twice in one tensor, gives a result a letter that no operand has,
  /// or declares one whole that nothing has.
  explicit MapText(const std::string& text, const std::string& whole = "");

  size_t operands() const { return operands_.size(); }
  size_t results() const { return results_.size(); }

  /// The map of one call. `terms[i]` says which operand of the text `values[i]` is: an optional
  /// tensor may be absent, a list has several. Throws where a tensor's number of dimensions is not
  /// what its letters say.
  DimensionMap of(std::span<const Value> values, std::span<const size_t> terms) const;

  /// As it was written, for messages.
  const std::string& text() const { return text_; }

 private:
  /// "aK..N": `before` is "aK", `after` is "N".
  struct Term {
    std::string before, after;
    bool dots = false;
    std::string text;
    size_t letters() const { return before.size() + after.size(); }
  };
  Term term(const std::string& text) const;
  static std::string expanded(const Term& term, const std::string& dots);

  std::string text_;
  std::vector<Term> operands_, results_;
  std::string whole_;  ///< without the dots
  bool whole_dots_ = false;
};

}  // namespace oslo
