#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace oslo {

/// Gives back what an operator saved for its backward pass. It is called once for each use,
/// possibly on another thread (the engine's) and without the thread-local state of the forward
/// pass, so it holds all that it needs. It returns a tensor of the saved one's sizes, type and
/// device.
using UnpackSavedTensor = std::function<at::Tensor()>;

/// Decides what to keep of a tensor that an operator saves, and says how to get it back. An empty
/// function keeps the tensor itself. It must not write to the tensor. The tensor it is handed has
/// no history, so that keeping it keeps no graph alive.
using PackSavedTensor = std::function<UnpackSavedTensor(const at::Tensor& saved)>;

/// While alive, every tensor that an operator of this thread saves for its backward pass goes
/// through `pack`; this is what Python's `torch.autograd.graph.saved_tensors_hooks` does. Scopes
/// nest, and the innermost one alone is asked. Graphs may outlive the scope.
///
/// A saved tensor that is written afterwards is an error at its use, as it is without a scope.
/// LibTorch itself does not check this where there are hooks (saved_variable.cpp).
///
/// Cost: one call of `pack` and one allocation for each saved tensor; nothing without a scope.
/// Thread safety: a scope belongs to the thread that made it and is destroyed there, in reverse
/// order. Throws when another autograd engine than ours has been installed in the process (a Python
/// interpreter installs one), since hooks would then silently not be called.
class SavedTensorScope {
 public:
  explicit SavedTensorScope(PackSavedTensor pack);
  ~SavedTensorScope();
  SavedTensorScope(const SavedTensorScope&) = delete;
  SavedTensorScope& operator=(const SavedTensorScope&) = delete;

  const PackSavedTensor& pack() const { return pack_; }

  /// That of this thread which is asked; null where there is none.
  static const SavedTensorScope* current();

 private:
  PackSavedTensor pack_;
  const SavedTensorScope* outer_;
};

/// Has `pack` asked where this thread is in no scope, until it starts a backward pass; null takes
/// that back. One a thread. For what begins somewhere within a program's forward, and so cannot end
/// before scopes that the program has begun. Throws as SavedTensorScope does.
void pack_until_backward(PackSavedTensor pack);

/// While the result lives: what operators of this thread save over the memory of `memory`, which
/// its owner can fill again, is not kept but handed to `pack`, whatever scope there is. Throws as
/// SavedTensorScope does.
std::shared_ptr<void> regain_memory(const at::Tensor& memory, PackSavedTensor pack);

/// Has `call` called before the next backward pass that this thread starts, once; null takes that
/// back. One a thread.
void before_next_backward(std::function<void()> call);

}  // namespace oslo
