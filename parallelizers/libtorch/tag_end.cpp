#include "parallelizers/libtorch/tag_end.h"

#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <mutex>
#include <utility>

#include "parallelizers/libtorch/tensor_tag.h"

namespace oslo {
namespace {

using torch::autograd::ForwardGrad;

/// Runs when the parameter's place in the graph is released. The reference makes sure that this
/// happens while the rest of the parameter is still there.
struct EndsTag {
  c10::weak_intrusive_ptr<c10::TensorImpl> parameter;
  std::shared_ptr<ForwardGrad> tangents;

  void operator()(ForwardGrad* /*tangents*/) const {
    if (parameter.expired()) clear_tag(*parameter._unsafe_get_target());
  }
};

}  // namespace

void end_tag_with(const at::Tensor& parameter) {
  auto* const place = torch::autograd::impl::materialize_autograd_meta(parameter);
  const std::lock_guard<std::mutex> lock(place->mutex_);
  // The one member of a place that may bring a destructor: whatever kind of place it is (a leaf may
  // be a view) it stays as it is, and the tangents of forward mode are kept as before.
  if (std::get_deleter<EndsTag>(place->fw_grad_) != nullptr) return;
  auto tangents = place->fw_grad_ ? place->fw_grad_ : std::make_shared<ForwardGrad>();
  auto* const kept = tangents.get();
  place->fw_grad_ = std::shared_ptr<ForwardGrad>(
      kept, EndsTag{c10::weak_intrusive_ptr<c10::TensorImpl>(parameter.getIntrusivePtr()),
                    std::move(tangents)});
}

}  // namespace oslo
