#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace oslo {

/// What can be cut: the weights of layers, and parameters that belong to none.
enum class LayerKind {
  linear,       ///< weight [out, in]
  embedding,    ///< table [rows, features]
  convolution,  ///< Conv1d, 2d, 3d: weight [out, in / groups, ...]
  transposed,   ///< ConvTranspose1d, 2d, 3d: weight [in, out / groups, ...]
  attention,    ///< MultiheadAttention's fused in_proj_weight [3 x features, features]
  recurrent,    ///< LSTM, GRU, RNN and their cells: weights [gates x hidden units, features]
  parameter,    ///< a matrix (two or more dimensions) that a user's own module registered
};

/// Where a module keeps a parameter.
///
/// `lm_head->weight = wte->weight` changes the typed member alone, which forward reads. The tensor
/// that the layer was made with stays registered: `parameters()` lists it, it never gets a
/// gradient, and optimizers pass over it. Registrations are the author's and stay as they are,
/// since an optimizer steps, and a norm counts, what `parameters()` lists, duplicates included.
struct ParameterSlot {
  at::Tensor registered;         ///< what `parameters()` lists; undefined: nothing
  at::Tensor* member = nullptr;  ///< what forward reads; null: what is registered

  /// What the model computes with: the member, unless forward computed that (a product, a view),
  /// else what is registered.
  const at::Tensor& in_use() const;
  /// Whether nothing uses it, as forward computes what stands in its place.
  bool computed() const;
};

struct ParameterView : ParameterSlot {
  std::string path;   ///< "h.0.attn.c_attn.weight"
  std::string name;   ///< "weight"
  size_t module = 0;  ///< its place in `ModelView::modules`
};

struct BufferView {
  std::string path;
  at::Tensor tensor;
};

struct NamedSlot : ParameterSlot {
  std::string name;  ///< "weight_hh_l0"
};

/// A module whose weight can be cut, as far as a plan has to know it.
struct LayerView {
  LayerKind kind = LayerKind::linear;
  ParameterSlot weight;
  ParameterSlot bias;     ///< of an undefined tensor where it has none
  bool table = false;     ///< its rows are looked up by what a model is given
  int64_t groups = 1;     ///< of a convolution
  bool disjoint = false;  ///< a convolution's windows: kernel and stride are the same
  int64_t head_size = 1;  ///< of attention
  int64_t gates = 1;      ///< of a recurrent layer: stretches of hidden units in its weights
  /// A recurrent layer's other weights and biases, which are cut as its weight is.
  std::vector<NamedSlot> others = {};
  std::string weight_name = "weight", bias_name = "bias";
  std::string stays_whole = {};  ///< why it cannot be cut; empty: it can
};

/// One registration of a module. One that is registered twice is there under both paths.
struct ModuleView {
  std::string path;        ///< "h.0.attn"; empty for the root
  std::string name;        ///< "attn": its name in the parent
  std::string class_name;  ///< as users write it: "torch::nn::Linear", "Mlp"
  std::optional<LayerView> layer;
  /// Whether the matrices that it registers itself, beside its layer's, are its author's own: what
  /// is multiplied with. A library's other layers know best what they do with theirs.
  bool own_matrices = false;
  /// The module and the one that it is registered in; null for models of another kind.
  std::shared_ptr<torch::nn::Module> module, parent;
};

/// A parameter that a model computes with, under the first of its names.
struct NamedTensor {
  std::string name;
  at::Tensor tensor;
  /// Nothing uses it: forward computes what it computes with from other parameters.
  bool computed = false;
};

/// What the library knows of a model: its modules, parameters and buffers, as they are registered,
/// found in one walk. The plan, ties, checkpoints, verification and data parallelism read it and
/// never the model's own tree, so that another kind of model is one more function that fills it in.
///
/// Modules come parents before children, in registration order; parameters and buffers in that of
/// their modules, each under every name that it has. Names are the ones that LibTorch prints.
/// Members are read when they are asked for; a module that is registered after the walk is not
/// seen. Holds what it lists but for a root that was given by reference, which must outlive it.
class ModelView {
 public:
  /// Of a model in C++. Throws when the pointer is null.
  ModelView(const torch::nn::Module& root);                   // NOLINT(google-explicit-constructor)
  ModelView(const std::shared_ptr<torch::nn::Module>& root);  // NOLINT(google-explicit-constructor)
  template <typename M>
  ModelView(const std::shared_ptr<M>& root)  // NOLINT(google-explicit-constructor)
      : ModelView(std::shared_ptr<torch::nn::Module>(root)) {}
  /// Of a holder (TORCH_MODULE).
  template <typename Holder>
  requires requires(const Holder& root) { ModelView(root.ptr()); }
  ModelView(const Holder& root)  // NOLINT(google-explicit-constructor)
      : ModelView(root.ptr()) {}

  /// Of a model of another kind, from its own walk.
  ModelView(std::vector<ModuleView> modules, std::vector<ParameterView> parameters,
            std::vector<BufferView> buffers)
      : modules_(std::move(modules)),
        parameters_(std::move(parameters)),
        buffers_(std::move(buffers)) {}

  const std::vector<ModuleView>& modules() const { return modules_; }
  const std::vector<ParameterView>& parameters() const { return parameters_; }
  const std::vector<BufferView>& buffers() const { return buffers_; }

  /// The distinct parameters that the model computes with, each under its first name.
  std::vector<NamedTensor> in_use() const;

 private:
  std::vector<ModuleView> modules_;
  std::vector<ParameterView> parameters_;
  std::vector<BufferView> buffers_;
};

/// Remembers of a registered parameter that forward was seen to compute what stands in its place;
/// operators do not see it.
void set_computed(const at::Tensor& registered);
bool is_computed(const at::Tensor& registered);

}  // namespace oslo
