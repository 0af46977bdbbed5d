#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>

#include <map>
#include <memory>
#include <mutex>

#include "mpu/base/node_ptr.h"
#include "parallelizers/kernels/linear_kernels.h"

namespace oslo {

class FusedRun;

/// A product, as it was computed.
struct FusedSum {
  using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

  /// Whether `tensor` has its elements, in their order, and nobody wrote to them.
  bool is_sum(const at::Tensor& tensor) const;
  at::Tensor activation_in(at::IntArrayRef sizes) const;

  WeakStorage sum;
  int64_t elements;
  at::ScalarType type;
  c10::VariableVersion writes;  ///< counts those to it and to views of it
  uint32_t version;             ///< their number when it was computed
  WeakStorage weight;
  at::Tensor activation;
  std::weak_ptr<const FusedRun> run;  ///< that it was computed in; empty: in none
};

/// Behind the config's "kernel_fusion": what products compute in one pass with what stands beside
/// them, on the local tensors of one model.
///
/// An operator that runs at once cannot know where its result goes. So the first GeLU (approximate
/// "tanh") of a product's result is noted with the product's weight. From then on the products of
/// that weight compute the GeLU too, and the GeLU of that very tensor, or of all of it in another
/// shape, if nobody wrote to it, takes what is there. Where it does not come before the next
/// product, the note is dropped: a wrong guess costs time and memory for one activation, and
/// changes no number.
///
/// Operators that run again (operators/fused_run.h) compute and take what they did before, and
/// leave no note. A GeLU that will run again takes nothing of a product that will not.
///
/// Any thread may call it at any time. Notes follow the program, which is the same on all ranks.
class KernelFusion {
 public:
  KernelFusion() : kernels_(make_linear_kernels()) {}

  /// Kept alive by the graph that uses them.
  const std::shared_ptr<LinearKernels>& kernels() const { return kernels_; }

  /// Whether a GeLU is expected of products with this weight.
  bool gelu_follows(const at::Tensor& weight);
  /// `sum` is such a product, `activation` its GeLU where that was computed.
  void computed(const at::Tensor& sum, const at::Tensor& weight, at::Tensor activation = {});
  /// Called by the GeLU of `sum`. Undefined where it is still to be computed. Given once.
  at::Tensor take_gelu(const at::Tensor& sum);

 private:
  const std::shared_ptr<LinearKernels> kernels_;
  std::mutex mutex_;
  std::shared_ptr<FusedSum> last_;  ///< the product that was computed last
  /// Weights that a GeLU follows, by their memory, whose address is no other's while it is here.
  std::map<const c10::StorageImpl*, FusedSum::WeakStorage> noted_;
};

/// gelu(sum, "tanh") of which `activation` is the value: with its place in autograd's graph.
at::Tensor recorded_gelu(const at::Tensor& sum, at::Tensor activation);

/// The node of a `recorded_gelu`; its one edge is that of the sum.
class GeluNode : public torch::autograd::Node {
 public:
  /// The sum, while the graph keeps it.
  virtual at::Tensor sum() = 0;
};
/// Also where `activation` is a `recorded_gelu` in another shape. Null for any other tensor.
NodeHandle<GeluNode> gelu_node_of(const at::Tensor& activation);

}  // namespace oslo
