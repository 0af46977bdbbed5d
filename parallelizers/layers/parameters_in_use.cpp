#include "parallelizers/layers/parameters_in_use.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>

#include <algorithm>
#include <unordered_set>

#include "parallelizers/layers/module_tree.h"

namespace oslo {
namespace {

#define OSLO_MEMBER(member)                                          \
  if constexpr (requires { layer->member.unsafeGetTensorImpl(); }) { \
    if (name == #member) return &layer->member;                      \
  }

template <typename Layer>
at::Tensor* member_of(torch::nn::Module& module, const std::string& name) {
  auto* layer = dynamic_cast<Layer*>(&module);
  if (layer == nullptr) return nullptr;
  OSLO_MEMBER(weight)
  OSLO_MEMBER(bias)
  OSLO_MEMBER(weight_ih)
  OSLO_MEMBER(weight_hh)
  OSLO_MEMBER(bias_ih)
  OSLO_MEMBER(bias_hh)
  OSLO_MEMBER(in_proj_weight)
  OSLO_MEMBER(in_proj_bias)
  OSLO_MEMBER(q_proj_weight)
  OSLO_MEMBER(k_proj_weight)
  OSLO_MEMBER(v_proj_weight)
  OSLO_MEMBER(bias_k)
  OSLO_MEMBER(bias_v)
  return nullptr;
}

#undef OSLO_MEMBER

template <typename... Layers>
at::Tensor* member_of_any(torch::nn::Module& module, const std::string& name) {
  at::Tensor* found = nullptr;
  ((found = found != nullptr ? found : member_of<Layers>(module, name)), ...);
  return found;
}

struct ComputedTag final : c10::BackendMeta {
  c10::intrusive_ptr<c10::BackendMeta> clone(
      const c10::intrusive_ptr<c10::BackendMeta>& self) const override {
    return self;
  }
};

void collect(const torch::nn::Module& module, const std::string& prefix,
             std::unordered_set<const c10::TensorImpl*>& seen, std::vector<NamedTensor>& found) {
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    at::Tensor tensor = parameter_in_use(module, parameter.key(), parameter.value());
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    const at::Tensor* member =
        parameter_member(const_cast<torch::nn::Module&>(module), parameter.key());
    const bool computed =
        is_computed(tensor) || (member != nullptr && member->defined() && !member->is_leaf());
    found.push_back({join_path(prefix, parameter.key()), std::move(tensor), computed});
  }
  for (const auto& child : module.named_children()) {
    collect(*child.value(), join_path(prefix, child.key()), seen, found);
  }
}

}  // namespace

at::Tensor* parameter_member(torch::nn::Module& module, const std::string& name) {
  using namespace torch::nn;
  return member_of_any<LinearImpl, EmbeddingImpl, Conv1dImpl, Conv2dImpl, Conv3dImpl,
                       MultiheadAttentionImpl, LayerNormImpl, GroupNormImpl, BatchNorm1dImpl,
                       BatchNorm2dImpl, BatchNorm3dImpl, InstanceNorm1dImpl, InstanceNorm2dImpl,
                       InstanceNorm3dImpl, ConvTranspose1dImpl, ConvTranspose2dImpl,
                       ConvTranspose3dImpl, EmbeddingBagImpl, BilinearImpl, PReLUImpl, LSTMCellImpl,
                       GRUCellImpl, RNNCellImpl>(module, name);
}

at::Tensor parameter_in_use(const torch::nn::Module& module, const std::string& name,
                            const at::Tensor& registered) {
  // Only read: LibTorch's classes are asked without const in one place.
  const at::Tensor* member = parameter_member(const_cast<torch::nn::Module&>(module), name);
  return member != nullptr && member->defined() && member->is_leaf() ? *member : registered;
}

std::vector<NamedTensor> parameters_in_use(const torch::nn::Module& module) {
  std::unordered_set<const c10::TensorImpl*> seen;
  std::vector<NamedTensor> found;
  collect(module, "", seen, found);
  return found;
}

void set_computed(const at::Tensor& registered) {
  registered.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<ComputedTag>());
}

bool is_computed(const at::Tensor& registered) {
  const auto* meta = registered.unsafeGetTensorImpl()->get_backend_meta();
  return dynamic_cast<const ComputedTag*>(meta) != nullptr;
}

MemberKeeper::MemberKeeper(torch::nn::Module& root)
    : modules_(root.modules(/*include_self=*/false)), parameters_(root.parameters()) {
  keep(root);
  for (const auto& module : modules_) keep(*module);
}

void MemberKeeper::keep(torch::nn::Module& module) {
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
    at::Tensor* place = parameter_member(module, parameter.key());
    if (place != nullptr) members_.push_back({&module, parameter.key(), place, *place});
  }
}

void MemberKeeper::restore() {
  for (const Member& member : members_) {
    if (member.place->is_same(member.value)) continue;
    const bool tied = std::any_of(parameters_.begin(), parameters_.end(),
                                  [&](const auto& own) { return own.is_same(*member.place); });
    const Computed now{member.module, member.name};
    const bool known = std::find(computed_.begin(), computed_.end(), now) != computed_.end();
    if (!tied && !known) computed_.push_back(now);
    *member.place = member.value;
  }
}

}  // namespace oslo
