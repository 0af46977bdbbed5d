#pragma once

#include <c10/util/SmallVector.h>

#include <algorithm>

#include "parallelizers/placement/layout/layout.h"

namespace oslo {

/// What is missing of a value that is a partial sum: its local tensor is one addend a rank of the
/// axis. Only products make such values, of weights that a plan says it of (`AxisUse::join`), and
/// only additions take them as they are (engine/joined_sum.h): two branches of a block that end in
/// one sum, as in GPT-J, GPT-NeoX and PaLM, then cost one all-reduce. All else ends the sum first,
/// at once and on all ranks, as every rank makes the same calls. (DTensor has such values, too,
/// Partial, and lets them wait for whoever looks; here the plan has seen who does.)
struct PartialSum {
  using Terms = c10::SmallVector<int, 4>;

  int axis = 0;
  /// The sum that each product in it belongs to (`AxisUse::sum`), sorted.
  Terms terms;
  int parts = 0;  ///< how many make it complete; 0: a planner looks which do
  /// How the value is cut on the axis when the sum has ended: it is reduce-scattered so. Whole: it
  /// is all-reduced.
  Layout::AxisCut after = {};

  bool complete() const { return parts > 0 && static_cast<int>(terms.size()) >= parts; }
  /// Whether the two may be added up before they are reduced.
  bool joins(const PartialSum& other) const {
    if (axis != other.axis || parts != other.parts || !(after == other.after)) return false;
    return parts == 0 || terms.front() == other.terms.front();
  }
  PartialSum with(const PartialSum& other) const {
    PartialSum both = *this;
    both.terms.append(other.terms.begin(), other.terms.end());
    std::ranges::sort(both.terms);
    return both;
  }
};

/// Told of every partial sum that ends, with its terms: by its last addition, or because something
/// else uses it.
class SumWatch {
 public:
  virtual ~SumWatch() = default;
  virtual void ended(const PartialSum& sum) = 0;
};

}  // namespace oslo
