#pragma once

#include <ATen/core/stack.h>

#include <optional>

#include "parallelizers/placement/door/autocast_state.h"
#include "parallelizers/placement/operators/operator_entry.h"

namespace oslo {

/// Runs the operator under autocast, if that is on for the first placed or marked argument: by the
/// program's own guard, else by the model's `Precision`. Autocast's casts arrive at the door as
/// operators of their own. Placed tensors have no backend, so that LibTorch does not apply it by
/// itself. False where there is nothing to apply, and nothing was run.
///
/// By the model's precision run operators of the forward, on values that are followed, whatever
/// thread they run on. In a backward pass none do, as in PyTorch, where the region ends behind the
/// loss. A guard of the program that switches autocast off, and counts its nesting as PyTorch's
/// guards do (`at::autocast::increment_nesting`), is obeyed.
bool run_under_autocast(const OperatorEntry& op, torch::jit::Stack& stack);

/// While alive the thread's own autocast is on by the model's precision, where that holds for the
/// call: an operator that is made of others runs them on this rank's parts, past the door.
class AutocastOfParts {
 public:
  AutocastOfParts(const OperatorEntry& op, c10::ArrayRef<c10::IValue> arguments);
  ~AutocastOfParts();
  AutocastOfParts(const AutocastOfParts&) = delete;
  AutocastOfParts& operator=(const AutocastOfParts&) = delete;

 private:
  std::optional<at::DeviceType> device_;  ///< unset: nothing was switched on
  at::ScalarType type_ = at::kFloat;      ///< as it was, as what follows
  bool caches_ = true, outer_keeps_ = false, outer_by_model_ = false;
};

/// Takes a cast that autocast asks for, of a weight or of a view of one, out of the weights that
/// the model keeps in that type (carrier/weight_casts.h). False of every other call.
bool take_kept_cast(const OperatorEntry& op, torch::jit::Stack& stack);

/// The marked tensor that `view` is a view of; undefined where it is none, or had to be gathered.
at::Tensor viewed_parameter(const at::Tensor& view);

/// Whether this thread is within an operator that runs under autocast: what its kernel calls, the
/// casts first, is no call of the program's.
bool is_inside_autocast();

/// Where a thread is in a call under autocast, and the types that it casts to: what decides how an
/// operator runs that such a call is made of.
class AutocastState {
 public:
  /// That of this thread.
  AutocastState();

  /// While alive the thread is there; where it was comes back afterwards.
  class Scope;

 private:
  void set() const;

  AutocastTypes types_;
  bool inside_kernel_, may_keep_casts_, on_by_model_, model_keeps_casts_;
};

class AutocastState::Scope {
 public:
  explicit Scope(const AutocastState& state) { state.set(); }
  ~Scope() { before_.set(); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  const AutocastState before_;
};

/// While alive LibTorch remembers no casts, and a model's weights are kept in its type as if it
/// did (carrier/weight_casts.h).
class CastsOfModelOnly {
 public:
  CastsOfModelOnly();
  ~CastsOfModelOnly();
  CastsOfModelOnly(const CastsOfModelOnly&) = delete;
  CastsOfModelOnly& operator=(const CastsOfModelOnly&) = delete;

 private:
  const bool outer_;
  const NoCastCache no_cast_cache_;
};

/// While alive, what this thread runs in a backward pass is a forward that is computed again: the
/// model's precision holds in it.
class ForwardAgain {
 public:
  ForwardAgain();
  ~ForwardAgain();
  ForwardAgain(const ForwardAgain&) = delete;
  ForwardAgain& operator=(const ForwardAgain&) = delete;

 private:
  bool outer_;
};

}  // namespace oslo
