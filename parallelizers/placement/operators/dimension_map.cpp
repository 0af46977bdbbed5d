#include "parallelizers/placement/operators/dimension_map.h"

#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/placement/layout/purpose.h"
#include "parallelizers/placement/operators/planned_results.h"

namespace oslo {

int64_t DimensionMap::factor(size_t operand, char letter) const {
  for (const Scale& scale : scales) {
    if (scale.operand == static_cast<int>(operand) && scale.letter == letter) return scale.factor;
  }
  return 1;
}

std::string letters(int64_t count) {
  constexpr int64_t kMost = 256 - 'a';
  OSLO_CHECK(count <= kMost, RuleScope::current(), ": ", count,
             " dimensions; a tensor that is cut over ranks may have ", kMost,
             " at most; oslo::full_tensor(t) makes it a plain one");
  std::string text(count, 'a');
  for (int64_t i = 0; i < count; ++i) text[i] = static_cast<char>('a' + i);
  return text;
}

LayoutPtr Resolution::layout_of(std::string_view letters) const {
  std::shared_ptr<Layout> layout;
  for (size_t i = 0; i < axes_.size(); ++i) {
    const Axis& axis = axes_[i];
    if (axis.letter == 0) continue;
    const size_t dim = letters.find(axis.letter);
    if (dim == std::string_view::npos) continue;
    if (!layout) layout = std::make_shared<Layout>(context_);
    (*layout)[static_cast<int>(i)] = {
        static_cast<int64_t>(dim), axis.letter == scaled_ ? axis.cut->scaled(factor_) : axis.cut};
  }
  return layout;
}

Axes Resolution::axes_keeping(std::string_view letters) const {
  Axes kept;
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].letter != 0 && contains(letters, axes_[i].letter)) kept.push_back(i);
  }
  return kept;
}

int Resolution::axis_keeping(char letter) const {
  const Axes kept = axes_keeping({&letter, 1});
  return kept.empty() ? -1 : kept[0];
}

Axes Resolution::axes_beside(std::string_view letters) const {
  Axes beside;
  for (size_t i = 0; i < axes_.size(); ++i) {
    if (axes_[i].letter != 0 && !contains(letters, axes_[i].letter)) beside.push_back(i);
  }
  return beside;
}

Value Resolution::finish(at::Tensor local, std::string_view letters, bool may_wait) const {
  const Axes partial = axes_beside(letters);
  Axes free;
  for (size_t axis = 0; !use_.empty() && axis < axes_.size(); ++axis) {
    if (axes_[axis].letter == 0) free.push_back(static_cast<int>(axis));
  }
  return finish_result({std::move(local), layout_of(letters)}, context_, partial, free, use_,
                       may_wait);
}

}  // namespace oslo
