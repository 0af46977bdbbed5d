#pragma once

#include <torch/torch.h>

namespace oslo::test {

/// x * x * x, as a user's own function that saves its input.
struct Cube : torch::autograd::Function<Cube> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, torch::Tensor x) {
    context->save_for_backward({x});
    return x * x * x;
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* context,
                                               torch::autograd::tensor_list gradients) {
    const torch::Tensor x = context->get_saved_variables()[0];
    return {gradients[0] * x * x * 3};
  }
};

}  // namespace oslo::test
