#include "parallelizers/libtorch/live_hooks.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>

namespace oslo {

bool has_live_hooks(const at::Tensor& tensor) {
  namespace impl = torch::autograd::impl;
  const auto& hooks = impl::hooks(tensor);
  if (hooks.empty()) return false;
  // All functions of C++ are one hook.
  const auto& listed = impl::get_autograd_meta(tensor)->cpp_hooks_list_;
  return listed == nullptr || hooks.size() > 1 ||
         std::any_of(listed->begin(), listed->end(),
                     [](const auto& function) { return static_cast<bool>(function); });
}

}  // namespace oslo
