#include "oslo_cpp/exported/module/copy_state.h"

#include <ATen/ATen.h>
#include <torch/nn/module.h>

#include "mpu/base/error.h"

namespace oslo::exported {
namespace {

using Tensors = torch::OrderedDict<std::string, at::Tensor>;

void copy_tensors(const Tensors& from, const Tensors& to, const std::string& file) {
  OSLO_CHECK(from.size() == to.size(), "clone: ", file, " has ", to.size(),
             " tensors where the model has ", from.size(), "; it is another file now");
  for (const auto& item : from) {
    const at::Tensor* copy = to.find(item.key());
    OSLO_CHECK(copy != nullptr && copy->sizes() == item.value().sizes(), "clone: ", file,
               " has no ", item.key(), " of the size ", item.value().sizes(),
               "; it is another file now");
    // In place: a layer's typed member is the same tensor.
    at::Tensor(*copy).set_data(item.value().detach().clone());
    at::Tensor(*copy).requires_grad_(item.value().requires_grad());
  }
}

}  // namespace

void copy_state(const torch::nn::Module& from, torch::nn::Module& to, const std::string& file) {
  copy_tensors(from.named_parameters(), to.named_parameters(), file);
  copy_tensors(from.named_buffers(), to.named_buffers(), file);
  // Parents come first: each sets all below it, which then set themselves.
  const auto copies = to.named_modules();
  for (const auto& item : from.named_modules()) {
    if (const auto* copy = copies.find(item.key())) (*copy)->train(item.value()->is_training());
  }
}

}  // namespace oslo::exported
