#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

#include "parallelizers/memory/offload/offload_scope.h"
#include "parallelizers/placement/operators/call_observer.h"

namespace oslo {

/// An OffloadScope that nobody wrote: it begins where a forward that records gradients first meets
/// a parameter of the model on a device, and ends where the thread starts a backward pass.
/// Parameters stay. Scopes of the program's are asked first, a `checkpoint` among them. Forwards
/// without a backward pass between them, of this model and of others, share one.
///
/// As a model's `ModelContext::observer`. On any threads. On the CPU it does nothing.
class OffloadLayers final : public CallObserver {
 public:
  /// `parameters`: marked.
  OffloadLayers(const std::vector<at::Tensor>& parameters, const OffloadOptions& options);

  bool follows_calls() const override { return false; }
  void called(const OperatorEntry&, c10::ArrayRef<c10::IValue>) override {}
  void threw(const OperatorEntry&) override {}
  void about_to_use(const at::Tensor& parameter, c10::ArrayRef<c10::IValue> arguments) override;

  const OffloadOptions& options() const { return options_; }
  /// Where the model is now, by its first parameter.
  c10::Device device() const;

 private:
  struct Forward;
  std::vector<at::Tensor> memory() const;

  const OffloadOptions options_;
  /// Each leads to this, which must not keep them.
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> parameters_;
};

}  // namespace oslo
