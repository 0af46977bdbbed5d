#include "parallelizers/modules/parameters_in_use.h"

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>

#include <algorithm>

#include "parallelizers/modules/module_traits.h"

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

}  // namespace

at::Tensor* parameter_member(torch::nn::Module& module, const std::string& name) {
  using namespace torch::nn;
  if (auto* traits = dynamic_cast<ModuleTraits*>(&module)) return traits->tied_parameter(name);
  return member_of_any<LinearImpl, EmbeddingImpl, Conv1dImpl, Conv2dImpl, Conv3dImpl,
                       MultiheadAttentionImpl, LayerNormImpl, GroupNormImpl, BatchNorm1dImpl,
                       BatchNorm2dImpl, BatchNorm3dImpl, InstanceNorm1dImpl, InstanceNorm2dImpl,
                       InstanceNorm3dImpl, ConvTranspose1dImpl, ConvTranspose2dImpl,
                       ConvTranspose3dImpl, EmbeddingBagImpl, BilinearImpl, PReLUImpl, LSTMCellImpl,
                       GRUCellImpl, RNNCellImpl>(module, name);
}

std::vector<NamedTensor> parameters_in_use(const ModelView& model) {
  return model.in_use();
}

MemberKeeper::MemberKeeper(const ModelView& model) {
  for (const ParameterView& parameter : model.parameters()) {
    parameters_.push_back(parameter.registered);
    if (parameter.member == nullptr) continue;
    members_.push_back({model.modules()[parameter.module].module, parameter.name, parameter.member,
                        *parameter.member});
  }
}

void MemberKeeper::restore() {
  for (const Member& member : members_) {
    if (member.place->is_same(member.value)) continue;
    const bool tied = std::any_of(parameters_.begin(), parameters_.end(),
                                  [&](const auto& own) { return own.is_same(*member.place); });
    const Computed now{member.module.get(), member.name};
    const bool known = std::find(computed_.begin(), computed_.end(), now) != computed_.end();
    if (!tied && !known) computed_.push_back(now);
    *member.place = member.value;
  }
}

}  // namespace oslo
