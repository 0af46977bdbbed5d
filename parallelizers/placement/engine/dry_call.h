#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "parallelizers/placement/engine/operator_entry.h"
#include "parallelizers/placement/layout/value.h"

namespace oslo {

/// What a dry run remembers. In a dry run the rules work on meta tensors: shapes without content,
/// one rank of a pretended group. Whole values stay placed, so that every operator enters the door.
struct DryShapes {
  /// The device that tensors say they are on: the model's.
  at::Device device = at::kCPU;

  /// Results of operators without a kernel for meta tensors, by operator, then by arguments.
  std::map<std::string, std::map<std::string, std::vector<c10::IValue>>> known;
  /// Operators whose rules call others without such a kernel: these rules work on zeros.
  std::set<std::string> on_zeros;
  /// Operators that asked for values and were given zeros, in order of appearance.
  std::vector<std::string> value_readers;

  /// A digest of the calls that the forward itself makes: operators, global sizes, numbers. It is
  /// the same however weights are cut, unless the forward reads the sizes of one, which are local.
  uint64_t calls = 0;
  int depth = 0;  ///< of rules within rules

  /// Ordinary tensors (a cache that is no buffer) that the forward wrote to, by storage: their
  /// bytes, and what these were before.
  struct Written {
    at::Tensor tensor, bytes, before;
    bool in_graph;
  };
  std::map<const c10::StorageImpl*, Written> written;

  /// The operator that the forward called last of those that threw; empty: none did.
  std::string failed;
  /// The run has ended: what the model kept of it are shapes, which nobody may compute with.
  bool over = false;
};

/// Remembers an ordinary tensor before its first write; puts all of them back.
void remember(DryShapes& shapes, const at::Tensor& target);
void restore_written(DryShapes& shapes);

/// Throws, naming the example, when the run that these shapes belong to has ended.
void refuse_kept(const DryShapes& shapes);

/// One call in a dry run. Takes it into the digest, unless it is one that a rule makes, and writes
/// down where it throws. `shapes` may be null: the call is none of a dry run.
class DryNote {
 public:
  DryNote(DryShapes* shapes, const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments);
  ~DryNote();
  DryNote(const DryNote&) = delete;
  DryNote& operator=(const DryNote&) = delete;

 private:
  DryShapes* shapes_;
  const OperatorEntry& op_;
  int exceptions_ = 0;
};

inline bool is_dry(const Value& value) {
  return value.layout && value.layout->mesh()->dry != nullptr;
}

/// The shape of an ordinary tensor: on the meta device, differentiable if it is.
at::Tensor shape_of(const at::Tensor& tensor);

/// Zeros of this shape (of a mask: true), with its strides, differentiable if it is. The memory of
/// large ones is not touched until somebody writes to it.
at::Tensor zeros_of(const at::Tensor& shape);

/// Runs an operator below the door on shapes. Operators that have no kernel for that (in C++ some
/// have none, and those that read values cannot) run once on zeros, or where values decide the
/// results' sizes on what makes these the largest; the results' shapes are remembered.
std::vector<c10::IValue> call_on_shapes(const OperatorEntry& op, std::vector<c10::IValue> arguments,
                                        DryShapes& shapes);

}  // namespace oslo
