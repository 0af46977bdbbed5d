#pragma once

#include <ATen/core/ivalue.h>

#include <memory>
#include <utility>

#include "parallelizers/placement/carrier/arguments.h"
#include "parallelizers/placement/carrier/graph/graph_place.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/layout/sharded_weight.h"
#include "parallelizers/placement/operators/operator_entry.h"

namespace oslo {

/// Calls `function` with each tensor that an operator writes.
template <typename Function>
void for_each_written(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments,
                      const Function& function) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::AliasInfo* const alias = op.schema->arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) for_each_tensor_in(arguments[i], function);
  }
}

/// Whether an operator writes what has the mark of a weight of which data replicas keep parts.
inline bool writes_sharded(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
  bool writes = false;
  for_each_written(op, arguments, [&](const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.key_set().has(kPlacedKey) || placed_impl(tensor)) return;
    const Mark* const mark = mark_of(tensor);
    writes = writes || (mark != nullptr && mark->sharded != nullptr);
  });
  return writes;
}

/// While alive, weights of which data replicas keep parts are written (ShardedWeight::write), if
/// they are what an operator writes, or `tensor`.
class WrittenWeights {
 public:
  explicit WrittenWeights(const at::Tensor& tensor) { add(tensor); }
  WrittenWeights(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) {
    if ((!op.in_place && !op.writes_out) || op.metadata) return;
    for_each_written(op, arguments, [&](const at::Tensor& tensor) { add(tensor); });
  }
  WrittenWeights(const WrittenWeights&) = delete;
  WrittenWeights& operator=(const WrittenWeights&) = delete;

 private:
  void add(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.key_set().has(kPlacedKey)) return;
    if (const PlacedTensorImpl* const impl = placed_impl(tensor)) {  // a view of a part, maybe
      const GraphPlace* const place = GraphPlace::find(*impl);
      if (place != nullptr && place->views_leaf()) add(place->leaf());
      return;
    }
    const Mark* const mark = mark_of(tensor);
    if (mark == nullptr || !mark->sharded) return;
    if (auto write = mark->sharded->write(tensor)) writes_.push_back(std::move(write));
  }

  c10::SmallVector<std::shared_ptr<void>, 1> writes_;
};

}  // namespace oslo
