#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <memory>
#include <vector>

namespace oslo {

/// What the library does where LibTorch's default engine is asked. All belong to the calling
/// thread.
struct EngineHooks {
  /// Before a backward pass (also of `torch::autograd::grad`) from these roots; may throw.
  void (*before_pass)(const std::vector<torch::autograd::Edge>& roots);
  /// Where a pass of `torch::autograd::grad` is to look for the gradients that it is asked for.
  std::vector<torch::autograd::Edge> (*sought)(const std::vector<torch::autograd::Edge>& asked);
  /// Those, as they are handed out.
  std::vector<at::Tensor> (*found)(const std::vector<torch::autograd::Edge>& asked,
                                   std::vector<at::Tensor> gradients);
  /// What becomes of a tensor that an operator saves; null: the tensor itself is kept.
  std::unique_ptr<torch::autograd::SavedVariableHooks> (*saved_tensor)();
};

/// Puts an engine that asks `hooks` in the place of LibTorch's default one. There is one a process,
/// and no other way in from C++: LibTorch's own list of hooks for saved tensors holds Python
/// objects. Does nothing where another engine is there already, which is Python's. Called when the
/// library is loaded, before the first backward pass can have started LibTorch's threads.
///
/// It also clears up behind a pass that throws: LibTorch leaves the nodes that such a pass had not
/// come to in the queue of its thread, for as long as that starts no other pass. They would hold
/// model and groups, and a rank that failed alone would not be missed by the others.
void install_engine(const EngineHooks& hooks);

/// Whether the engine that passes run on is still that one: Python installs its own.
bool engine_is_installed();

}  // namespace oslo
