#pragma once

#include <torch/nn/modules/linear.h>

#include <optional>
#include <string>

#include "mpu/grid/mpu.h"
#include "parallelizers/layers/global_tensor.h"
#include "parallelizers/modules/layer_idx.h"

namespace oslo::nn {

/// Options of the parallel linear layers: LibTorch's, and how the weight is cut.
struct LinearOptions : torch::nn::LinearOptions {
  using torch::nn::LinearOptions::LinearOptions;
  LinearOptions(const torch::nn::LinearOptions& options)  // NOLINT(google-explicit-constructor)
      : torch::nn::LinearOptions(options) {}

  /// LibTorch's setting, returning these options.
  LinearOptions& bias(bool on) { return torch::nn::LinearOptions::bias(on), *this; }
  bool bias() const { return torch::nn::LinearOptions::bias(); }

  /// These, of a layer that is cut so by its class. Throws `Error` where they say otherwise.
  LinearOptions cut(const std::string& parallel) const;

  /// "col": the output features are cut (Megatron-LM's column parallel); "row": the input features;
  /// "data": nothing, each rank holds the whole layer. For `oslo::nn::Linear`; the classes that say
  /// it by their names refuse another one.
  TORCH_ARG(std::string, parallel) = "data";

  /// The axis of the grid over which it is cut, as `MPU::group` takes it: "row", or "tensor".
  TORCH_ARG(std::string, axis) = "tensor";

  /// Column: return the whole output on every rank instead of a cut one.
  TORCH_ARG(bool, gather_output) = false;

  /// Row: an ordinary input tensor is this rank's part of the input features already, as in code
  /// that calls Megatron-LM's layer. (A placed input says itself what it is.)
  TORCH_ARG(bool, input_is_parallel) = false;

  /// LiBai's: the layer of the model on whose pipeline stage this one lies, from 0, or -1 for the
  /// last one (parallelizers/modules/layer_idx.h). On a grid with pipeline stages such a layer
  /// stays whole until `initialize`, which knows the stages, cuts it as `parallel` says.
  TORCH_ARG(std::optional<int>, layer_idx) = std::nullopt;

  /// Layers on a grid (layers/grid/linear.h): keep what was gathered for the product until its
  /// backward is done, in place of gathering it again. Needed for create_graph.
  TORCH_ARG(bool, keep_gathered) = false;
};

/// A linear layer y = x W^T + b over the ranks of an axis (Megatron-LM, arXiv 1909.08053).
/// x is [.., in_features], y [.., out_features], in global sizes; `options` keeps the global sizes
/// too, `weight` and `bias` have this rank's. Making one draws the whole weight as
/// torch::nn::Linear does, so one seed gives the same layer at any number of ranks, and keeps this
/// rank's part; nothing is communicated. Parts are balanced; with more ranks than features some are
/// empty. On one rank it is an ordinary layer.
///
/// x may be a global tensor over more axes, such as a batch over data and tensor ranks
/// (global_tensor.h): y lies as x does there, and the layer's gradients are those of the whole
/// batch, summed over these axes in backward, one all-reduce a parameter.
class LinearImpl : public torch::nn::LinearImpl, public LayerIdx {
 public:
  LinearImpl(const LinearOptions& options, const MPU& mpu);

  at::Tensor forward(const at::Tensor& input);

  /// Makes new parameters, cut like the present ones.
  void reset() override;
  /// Draws the parameters anew. Call it on this class: torch::nn::LinearImpl's would take the part
  /// for the whole.
  void reset_parameters();

  /// A deep copy, its parameters cut alike.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override;
  /// Refused by name when the layer is cut (see parallelizers/layers/layer.h).
  void save(torch::serialize::OutputArchive& archive) const override;
  void pretty_print(std::ostream& stream) const override;

 protected:
  template <typename Layer>
  static std::shared_ptr<torch::nn::Module> clone_of(const Layer& layer,
                                                     const std::optional<at::Device>& device);

 private:
  std::string parallel_;
  bool gather_output_ = false;
  bool input_is_parallel_ = false;
};
TORCH_MODULE(Linear);

/// Output features cut: weight [out / ranks, in], bias [out / ranks]. Forward communicates nothing
/// and leaves y cut on its last dimension; backward all-reduces the gradient of x.
class ColumnParallelLinearImpl final : public LinearImpl {
 public:
  ColumnParallelLinearImpl(const LinearOptions& options, const MPU& mpu)
      : LinearImpl(options.cut("col"), mpu) {}
  ColumnParallelLinearImpl(int64_t in_features, int64_t out_features, const MPU& mpu)
      : ColumnParallelLinearImpl(LinearOptions(in_features, out_features), mpu) {}
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override;
};
TORCH_MODULE(ColumnParallelLinear);

/// Input features cut: weight [out, in / ranks]; the bias stays whole and is added once. Forward
/// all-reduces y; backward communicates nothing when x came cut.
class RowParallelLinearImpl final : public LinearImpl {
 public:
  RowParallelLinearImpl(const LinearOptions& options, const MPU& mpu)
      : LinearImpl(options.cut("row"), mpu) {}
  RowParallelLinearImpl(int64_t in_features, int64_t out_features, const MPU& mpu)
      : RowParallelLinearImpl(LinearOptions(in_features, out_features), mpu) {}
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<at::Device>& device = std::nullopt) const override;
};
TORCH_MODULE(RowParallelLinear);

}  // namespace oslo::nn
