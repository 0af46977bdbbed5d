#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "parallelizers/deferred/generator_state.h"
#include "parallelizers/placement/operators/operator_entry.h"

namespace oslo {

struct RecordedStep;
/// What a storage holds: the last operator that wrote to it, behind which the others hang. Null:
/// nothing was written. Immutable, so that one who read it earlier keeps what it read, and recipes
/// never lead back to themselves.
using Recipe = std::shared_ptr<const RecordedStep>;

/// How a tensor lies in its storage. Offset and strides in elements.
struct Geometry {
  explicit Geometry(const at::Tensor& tensor);

  int64_t numel() const;
  bool contiguous() const;
  /// How many elements in a row, in logical order, follow each other in memory.
  int64_t run_length() const;

  c10::SmallVector<int64_t, 4> sizes, strides;
  int64_t offset;
  c10::ScalarType type;
};

/// Calls `visit(logical, offset, length)` for the stretches of memory that hold the elements
/// [begin, end) in logical order.
template <typename Visit>
void for_each_run(const Geometry& at, int64_t begin, int64_t end, const Visit& visit) {
  const int64_t run = at.run_length();
  for (int64_t logical = begin; logical < end;) {
    const int64_t within = logical % run;
    const int64_t length = std::min(run - within, end - logical);
    int64_t rest = logical - within;
    int64_t offset = at.offset + within;
    for (size_t d = at.sizes.size(); d-- > 0;) {
      offset += rest % at.sizes[d] * at.strides[d];
      rest /= at.sizes[d];
    }
    visit(logical, offset, length);
    logical += length;
  }
}

/// A tensor among a recorded call's arguments.
struct RecordedOperand {
  Geometry at;
  Recipe recipe;          ///< of a deferred one, as it was then; null: what the call writes to
  at::Tensor given = {};  ///< of an ordinary one, the tensor itself
  uint32_t version = 0;   ///< its version then
};

/// One call of an operator.
struct RecordedCall {
  const OperatorEntry* op;
  std::vector<c10::IValue> arguments;     ///< with shapes in place of the tensors
  std::vector<RecordedOperand> operands;  ///< the tensors, in order
  // Ranks that were never seeded take those of rank 0 (draws.h).
  mutable std::optional<GeneratorState> draws_from;
  mutable uint64_t digest = 0;  ///< of all of it

  /// Throws where an ordinary tensor has been written to since.
  void check_operands() const;
};
using RecordedCallPtr = std::shared_ptr<const RecordedCall>;

/// What one call did to one storage.
struct RecordedStep {
  RecordedStep(RecordedCallPtr call, int operand, int result, Geometry at, Recipe previous,
               int64_t bytes);
  ~RecordedStep();
  RecordedStep(const RecordedStep&) = delete;
  RecordedStep& operator=(const RecordedStep&) = delete;

  /// Whether it made the storage.
  bool made() const { return operand < 0; }
  /// Of the call and of what was there before, as their digests are now.
  uint64_t digest_now() const;

  RecordedCallPtr call;
  int operand;  ///< which one it wrote to; -1: the storage is that of a result
  int result;   ///< which one
  Geometry at;  ///< of what it wrote, or made
  mutable Recipe previous;
  int64_t bytes;  ///< of the storage
  bool covers;    ///< whether what was there before does not matter
  mutable uint64_t digest;
};

/// The steps that make up a content, the first one first: what lies before one that covers all is
/// left out.
std::vector<const RecordedStep*> steps_of(const Recipe& recipe);

/// Operators that write without reading what was there.
bool overwrites(const OperatorEntry& op);

}  // namespace oslo
