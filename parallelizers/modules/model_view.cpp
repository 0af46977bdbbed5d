#include "parallelizers/modules/model_view.h"

#include <torch/nn/module.h>

#include <unordered_set>

#include "parallelizers/libtorch/keys.h"
#include "parallelizers/libtorch/tensor_tag.h"

namespace oslo {
namespace {

/// Whether ranks have parts of it, and it is no parameter, which has a mark.
bool is_value_over_ranks(const at::Tensor& tensor) {
  return tensor.key_set().has(kPlacedKey) &&
         tag_part(*tensor.unsafeGetTensorImpl(), TagKind::mark) == nullptr;
}

/// Without gradients what forward computed of uncut tensors is a leaf, too.
bool is_computed_value(const at::Tensor& member) {
  return !member.is_leaf() || is_value_over_ranks(member);
}

}  // namespace

const at::Tensor& ParameterSlot::in_use() const {
  const bool is_own = member != nullptr && member->defined() && !is_computed_value(*member);
  return is_own && !is_computed(registered) ? *member : registered;
}

bool ParameterSlot::computed() const {
  return is_computed(in_use()) ||
         (member != nullptr && member->defined() && is_computed_value(*member));
}

std::vector<NamedTensor> ModelView::in_use() const {
  std::unordered_set<const c10::TensorImpl*> seen;
  std::vector<NamedTensor> found;
  for (const ParameterView& parameter : parameters_) {
    const at::Tensor& tensor = parameter.in_use();
    if (!seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
    found.push_back({parameter.path, tensor, parameter.computed()});
  }
  return found;
}

void set_computed(const at::Tensor& registered) {
  set_tag_part(*registered.unsafeGetTensorImpl(), TagKind::computed,
               c10::make_intrusive<TagPart>());
}

bool is_computed(const at::Tensor& registered) {
  return tag_part(*registered.unsafeGetTensorImpl(), TagKind::computed) != nullptr;
}

}  // namespace oslo
