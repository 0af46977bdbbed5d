#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "parallelizers/memory/saved_tensors.h"
#include "parallelizers/placement/operators/call_observer.h"
#include "parallelizers/placement/operators/operator_entry.h"
#include "parallelizers/placement/residency/stage_set.h"
#include "parallelizers/plan/dry/function_entries.h"

namespace oslo {

/// What a run on shapes does with memory: which operator makes, reads and saves what, and to which
/// layers it belongs. While it is attached it sees every operator that this thread runs on local
/// tensors, below the door (as WorkMeter does). At most one a thread at a time.
class MemoryTape final : public CallObserver {
 public:
  static constexpr int kNone = -1;

  struct Memory {
    c10::weak_intrusive_ptr<c10::StorageImpl> impl;  ///< keeps the address from being used again
    int64_t bytes = 0;  ///< 0 of shapes that nobody would make: of a parameter, an input
    int made = kNone;   ///< by which operator; kNone: it was there, as parameters and inputs are
    int died = kNone;   ///< before which operator; kNone: never
    int used = kNone;   ///< by which operator last
    std::vector<int> savers;  ///< operators
  };
  struct Call {
    int segment = kNone;              ///< the layers that it belongs to; kNone: none
    std::vector<int> arguments;       ///< memories
    std::vector<int> differentiated;  ///< those of `arguments` that get a gradient
    std::vector<int> results;
    StageSet stages;  ///< of a pipeline, that it runs on; empty: all
    bool in_graph = false;
    bool makes_shapes = false;  ///< for others that run on shapes
  };

  /// What of an operator's tensors waits for its backward.
  struct Saves {
    bool arguments = false, results = false;
  };

  /// `layers`: parameters of the segments, and which one each belongs to.
  explicit MemoryTape(std::unordered_map<const c10::TensorImpl*, int> layers);

  /// A run begins. `inner` is told of calls as well.
  void begin(std::shared_ptr<CallObserver> inner);
  void end();

  const std::vector<Call>& calls() const { return calls_; }
  const std::vector<Memory>& memories() const { return memories_; }
  /// Of ordinary tensors that met the model's values, and that are still there.
  int64_t input_bytes() const;

  void called(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments) override;
  void threw(const OperatorEntry& op) override { inner_->threw(op); }
  void about_to_use(const at::Tensor& parameter, c10::ArrayRef<c10::IValue> arguments) override;

  /// An operator whose results were known, so that it did not run: what it saves follows from its
  /// name.
  void note(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments,
            c10::ArrayRef<c10::IValue> results);

 private:
  struct Open;
  static std::unique_ptr<at::ObserverContext> started(const at::RecordFunction& function);
  static void ended(const at::RecordFunction& function, at::ObserverContext* context);
  int meet(const at::Tensor& tensor, bool made);
  void read(Call& call, const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments);
  void finish(Call call, c10::ArrayRef<c10::IValue> results, std::optional<Saves> instead);
  void bury();

  const std::unordered_map<const c10::TensorImpl*, int> layers_;
  std::shared_ptr<CallObserver> inner_;
  std::unordered_map<const c10::StorageImpl*, int> numbers_;
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> inputs_;
  std::vector<int> alive_;
  std::vector<Memory> memories_;
  std::vector<Call> calls_;
  FunctionEntries entries_;
  int segment_ = kNone;
  StageSet stages_;
  int depth_ = 0;           ///< of operators within a noted one
  std::vector<int> saved_;  ///< by the one that runs
  at::CallbackHandle handle_ = 0;
  std::unique_ptr<SavedTensorScope> saving_;
};

}  // namespace oslo
