#include "parallelizers/placement/carrier/unmark.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <unordered_map>

#include "parallelizers/libtorch/keys.h"
#include "parallelizers/libtorch/tensor_tag.h"
#include "parallelizers/placement/carrier/mark.h"

namespace oslo {

int64_t others_with_mark_of(const at::Tensor& tensor) {
  return others_with_tag_of(*tensor.unsafeGetTensorImpl());
}

bool awaits_gradients(const at::Tensor& tensor, const std::vector<at::Tensor>& beside) {
  const Mark* mark = mark_of(tensor);
  if (mark == nullptr || !mark->accumulator) return false;
  std::unordered_map<const Mark*, int64_t> others;
  for (const at::Tensor& each : beside) {
    const Mark* const own = mark_of(each);
    if (own != nullptr && own != mark && own->accumulator == mark->accumulator) ++others[own];
  }
  for (const at::Tensor& each : beside) {
    const auto known = others.find(mark_of(each));
    if (known != others.end() && others_with_mark_of(each) >= known->second) return true;
  }
  return mark->accumulator.use_count() > 1 + static_cast<int64_t>(others.size());
}

void unmark(const at::Tensor& tensor, const at::Tensor& whole) {
  const BelowDoor below;
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  impl->shallow_copy_from(whole.getIntrusivePtr());
  clear_tag(*impl);
  if (torch::autograd::impl::get_autograd_meta(tensor) != nullptr) {
    // The next graph makes an ordinary one.
    torch::autograd::impl::set_grad_accumulator(tensor, WeakNodePtr(NodePtr()));
  }
}

}  // namespace oslo
