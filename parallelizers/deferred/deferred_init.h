#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>

namespace oslo {

struct DeferredModel;

/// While alive, tensors that this thread makes on the CPU have a shape and no memory, and the
/// operators that fill them are recorded. So a model is constructed that no rank has room for:
///
///   auto model = [&] {
///     oslo::DeferredInit guard;
///     return GPT2LMHeadModel(config);
///   }();
///   auto parallel = oslo::initialize(model, config);      // draws this rank's part alone
///
/// `initialize` (or `materialize`) computes the parts in strips: a rank needs memory for its own
/// and some 64 MB. Parameters and buffers are bit for bit those of an ordinary construction under
/// the same seed, ties, views, casts (`model->to(torch::kDouble)`) and in-place initializers
/// included. The CPU generator is where that would have left it as soon as the operator is
/// recorded: of uniform_ and normal_ the stream is skipped in milliseconds, other random operators
/// are drawn and thrown away.
///
/// What reads elements (`.item()`) is computed where it takes no more than 64 MB. Refused by name:
/// `data_ptr()`, other devices than the CPU, and a model that is used before it is filled. A tensor
/// over a megabyte whose operators do not go element by element (`orthogonal_`, a transposed copy,
/// bernoulli_) is computed whole, one at a time. After the guard has ended operators
/// under `torch::NoGradGuard` on deferred tensors alone are still recorded (initializers applied
/// later), and so are casts.
///
/// As torchdistX's `deferred_init` and veScale's, without Python; there a shard's numbers depend on
/// the cut, or the generator is drawn through. Guards nest; each is of its thread.
class DeferredInit {
 public:
  DeferredInit();
  ~DeferredInit();
  DeferredInit(const DeferredInit&) = delete;
  DeferredInit& operator=(const DeferredInit&) = delete;

  /// Whether a guard is alive on this thread.
  static bool active();

 private:
  std::shared_ptr<DeferredModel> outer_;
  bool was_active_;
};

/// Fills a model that was constructed under `DeferredInit`, on one device: what `initialize` does
/// at the end. Parts of parallel layers written by hand (`oslo::nn::Linear`) are filled as parts.
/// Nothing is communicated. A model that has its content already stays as it is. Throws `Error`
/// under a `DeferredInit`, and where an ordinary tensor that a recorded operator reads was written
/// to since.
void materialize(const std::shared_ptr<torch::nn::Module>& model);

template <typename Impl>
void materialize(const torch::nn::ModuleHolder<Impl>& model) {
  materialize(std::shared_ptr<torch::nn::Module>(model.ptr()));
}

}  // namespace oslo
