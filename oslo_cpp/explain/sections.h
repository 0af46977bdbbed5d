#pragma once

#include <string>
#include <vector>

#include "oslo_cpp/explain/explanation.h"

namespace oslo {

/// Calls of one layer that follow each other, as a page shows them; layers that differ in nothing
/// but their number are one section.
struct ExplainedSection {
  /// "h.0", or "h.0 to h.11, alike"; the path of a module that lies in no layer.
  std::string title;
  int layers = 1;
  std::vector<ExplainedCall> calls;  ///< of many layers: "h.*.mlp.c_fc"

  /// Of one of the layers.
  Traffic moved() const;
};

std::vector<ExplainedSection> sections_of(const Explanation& explanation);

/// A sum of an explanation's moves: "tensor", "all_reduce".
struct ExplainedTotal {
  std::string group, collective;
  bool backward = false;
  Traffic traffic;
};

/// By group, collective and direction.
std::vector<ExplainedTotal> totals_of(const Explanation& explanation);

/// Moves that differ in nothing, as one.
struct ExplainedRepeat {
  ExplainedMove move;  ///< one of them
  int64_t times = 1;
};
std::vector<ExplainedRepeat> repeats_of(const std::vector<ExplainedMove>& moves);

/// Results that follow each other and differ in nothing, as one.
struct ExplainedAlike {
  ExplainedValue value;  ///< one of them
  int64_t times = 1;
};
std::vector<ExplainedAlike> alike_of(const std::vector<ExplainedValue>& values);

/// "aten::_softmax" as "_softmax"; other libraries' operators stay.
std::string short_name(const std::string& operation);
/// "[4, 8, 48]"; of several "3 x [4, 8, 16]".
std::string shape_text(const std::vector<int64_t>& shape, int64_t times = 1);

}  // namespace oslo
