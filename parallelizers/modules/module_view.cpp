// How a model in C++ becomes a ModelView: the one place that walks the tree of modules.
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include "mpu/base/error.h"
#include "parallelizers/modules/model_view.h"
#include "parallelizers/modules/module_traits.h"
#include "parallelizers/modules/module_tree.h"
#include "parallelizers/modules/parameters_in_use.h"

namespace oslo {
namespace {

using torch::nn::Module;

/// A layer may have a weight without registering it: one that is tied, and registered elsewhere.
ParameterSlot slot_of(Module& module, const std::string& name) {
  const at::Tensor* registered = registered_parameters(module).find(name);
  at::Tensor* member = parameter_member(module, name);
  if (registered != nullptr && registered->defined()) return {*registered, member};
  const bool alone = member != nullptr && member->defined() && member->is_leaf();
  return {alone ? *member : at::Tensor(), member};
}

template <typename Impl>
bool read_convolution(const Module& module, LayerView& layer) {
  const auto* convolution = module.as<Impl>();
  if (convolution == nullptr) return false;
  const auto& options = convolution->options;
  layer.kind = LayerKind::convolution;
  layer.groups = options.groups();
  layer.disjoint = *options.kernel_size() == *options.stride();
  return true;
}

template <typename Impl>
bool read_transposed(const Module& module, LayerView& layer) {
  const auto* convolution = module.as<Impl>();
  if (convolution == nullptr) return false;
  layer.kind = LayerKind::transposed;
  layer.groups = convolution->options.groups();
  if (layer.groups > 1) {
    layer.stays_whole = "a transposed convolution in groups, whose bias would be cut otherwise";
  }
  return true;
}

bool read_attention(const Module& module, LayerView& layer) {
  const auto* attention = module.as<torch::nn::MultiheadAttentionImpl>();
  // With other sizes for keys and values the three projections are parameters of their own.
  if (attention == nullptr || !attention->_qkv_same_embed_dim) return false;
  layer.kind = LayerKind::attention;
  layer.head_size = attention->head_dim;
  layer.weight_name = "in_proj_weight";
  layer.bias_name = "in_proj_bias";
  return true;
}

template <typename... Impls>
bool is_any(const Module& module) {
  return ((module.as<Impls>() != nullptr) || ...);
}

/// "weight_ih", of layers with "_l0" and "_l0_reverse" behind it; "weight_hr_l0" of projections.
bool is_recurrent_name(const std::string& name) {
  return name.starts_with("weight_ih") || name.starts_with("weight_hh") ||
         name.starts_with("weight_hr") || name.starts_with("bias_ih") ||
         name.starts_with("bias_hh");
}

bool read_recurrent(Module& module, LayerView& layer) {
  using namespace torch::nn;
  const bool cell = is_any<LSTMCellImpl, GRUCellImpl, RNNCellImpl>(module);
  if (!cell && !is_any<LSTMImpl, GRUImpl, RNNImpl>(module)) return false;
  layer.kind = LayerKind::recurrent;
  if (is_any<LSTMImpl, LSTMCellImpl>(module)) layer.gates = 4;
  if (is_any<GRUImpl, GRUCellImpl>(module)) layer.gates = 3;
  layer.weight_name = cell ? "weight_ih" : "weight_ih_l0";
  layer.bias_name.clear();
  if (const auto* lstm = module.as<LSTMImpl>(); lstm != nullptr && lstm->options.proj_size() > 0) {
    layer.stays_whole = "an LSTM with proj_size, whose states are sums over all hidden units";
  }
  for (const auto& item : registered_parameters(module)) {
    if (item.key() == layer.weight_name || !is_recurrent_name(item.key())) continue;
    layer.others.push_back({slot_of(module, item.key()), item.key()});
  }
  return true;
}

bool read_kind(Module& module, LayerView& layer) {
  if (module.as<torch::nn::LinearImpl>() != nullptr) return true;
  if (module.as<torch::nn::EmbeddingImpl>() != nullptr) {
    layer.kind = LayerKind::embedding;
    layer.table = true;
    return true;
  }
  return read_convolution<torch::nn::Conv1dImpl>(module, layer) ||
         read_convolution<torch::nn::Conv2dImpl>(module, layer) ||
         read_convolution<torch::nn::Conv3dImpl>(module, layer) ||
         read_transposed<torch::nn::ConvTranspose1dImpl>(module, layer) ||
         read_transposed<torch::nn::ConvTranspose2dImpl>(module, layer) ||
         read_transposed<torch::nn::ConvTranspose3dImpl>(module, layer) ||
         read_attention(module, layer) || read_recurrent(module, layer);
}

std::optional<LayerView> layer_of(Module& module) {
  LayerView layer;
  if (!read_kind(module, layer)) return std::nullopt;
  layer.weight = slot_of(module, layer.weight_name);
  if (!layer.bias_name.empty()) layer.bias = slot_of(module, layer.bias_name);
  return layer;
}

bool has_own_matrices(const ModuleView& entry) {
  const std::string& name = entry.class_name;
  const bool list = name == "torch::nn::ParameterList" || name == "torch::nn::ParameterDict";
  const bool librarys = name.starts_with("torch::nn::") || name.starts_with("oslo::nn::");
  return !librarys || list || entry.layer.has_value();
}

struct Walk {
  std::vector<ModuleView> modules;
  std::vector<ParameterView> parameters;
  std::vector<BufferView> buffers;

  void visit(const std::string& path, const std::string& name,
             const std::shared_ptr<Module>& module, const std::shared_ptr<Module>& parent) {
    const size_t position = modules.size();
    modules.push_back({path, name, class_name(*module), layer_of(*module), false, module, parent});
    modules.back().own_matrices = has_own_matrices(modules.back());
    for (const auto& item : registered_parameters(*module)) {
      const ParameterSlot slot = slot_of(*module, item.key());
      if (!slot.registered.defined()) continue;
      parameters.push_back({slot, join_path(path, item.key()), item.key(), position});
    }
    const auto* traits = dynamic_cast<const ModuleTraits*>(module.get());
    for (const auto& item : module->named_buffers(/*recurse=*/false)) {
      if (traits != nullptr && !traits->saves_buffer(item.key())) continue;
      buffers.push_back({join_path(path, item.key()), item.value()});
    }
    for (const auto& child : module->named_children()) {
      visit(join_path(path, child.key()), child.key(), child.value(), module);
    }
  }
};

}  // namespace

ModelView::ModelView(const std::shared_ptr<torch::nn::Module>& root) {
  OSLO_CHECK(root != nullptr, "there is no module to walk: the holder is empty");
  Walk walk;
  walk.visit("", "", root, nullptr);
  modules_ = std::move(walk.modules);
  parameters_ = std::move(walk.parameters);
  buffers_ = std::move(walk.buffers);
}

// Without asking for shared ownership of the root, which may lie on a stack. What is written
// through the view are the tensors, whose handles share.
ModelView::ModelView(const torch::nn::Module& root)
    : ModelView(std::shared_ptr<torch::nn::Module>(std::shared_ptr<void>(),
                                                   const_cast<torch::nn::Module*>(&root))) {}

}  // namespace oslo
