#pragma once

#include <torch/torch.h>

// A user's own derivatives: a memory-saving Swish, a linear layer whose backward is written out, a
// straight-through quantizer, a gradient reversal that carries a number.
namespace models::own {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::tensor_list;

struct SwishFunction : Function<SwishFunction> {
  static torch::Tensor forward(AutogradContext* ctx, torch::Tensor x) {
    ctx->save_for_backward({x});
    return x * torch::sigmoid(x);
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto x = ctx->get_saved_variables()[0];
    const auto s = torch::sigmoid(x);
    return {grads[0] * (s * (1 + x * (1 - s)))};
  }
};

struct LinearFunction : Function<LinearFunction> {
  static torch::Tensor forward(AutogradContext* ctx, torch::Tensor input, torch::Tensor weight,
                               torch::Tensor bias) {
    ctx->save_for_backward({input, weight});
    return input.mm(weight.t()) + bias.unsqueeze(0);
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const auto saved = ctx->get_saved_variables();
    const auto grad = grads[0];  // of another type than what was saved, under autocast
    const auto input = saved[0].to(grad.dtype()), weight = saved[1].to(grad.dtype());
    return {grad.mm(weight), grad.t().mm(input), grad.sum(0)};
  }
};

struct RoundThrough : Function<RoundThrough> {
  static torch::Tensor forward(AutogradContext*, torch::Tensor x, double step) {
    return torch::round(x / step) * step;
  }
  static tensor_list backward(AutogradContext*, tensor_list grads) { return {grads[0], {}}; }
};

struct ReverseGradient : Function<ReverseGradient> {
  static torch::Tensor forward(AutogradContext* ctx, torch::Tensor x, double alpha) {
    ctx->saved_data["alpha"] = alpha;
    return x.view_as(x);
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    return {grads[0].neg() * ctx->saved_data["alpha"].toDouble(), torch::Tensor()};
  }
};

struct OwnFunctionsImpl : torch::nn::Module {
  explicit OwnFunctionsImpl(int64_t in = 9, int64_t hidden = 22, int64_t classes = 5) {
    up = register_module("up", torch::nn::Linear(in, hidden));
    by_hand = register_module("by_hand", torch::nn::Linear(hidden, hidden));
    down = register_module("down", torch::nn::Linear(hidden, classes));
    domain = register_module("domain", torch::nn::Linear(hidden, 2));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    auto h = SwishFunction::apply(up(x));
    h = SwishFunction::apply(LinearFunction::apply(h, by_hand->weight, by_hand->bias));
    const auto label = down(h + 0.1 * RoundThrough::apply(h.detach() * 3 + h, 0.25));
    const auto source =
        LinearFunction::apply(ReverseGradient::apply(h, 0.3), domain->weight, domain->bias);
    return torch::cat({label, source}, 1);
  }

  torch::nn::Linear up{nullptr}, by_hand{nullptr}, down{nullptr}, domain{nullptr};
};
TORCH_MODULE(OwnFunctions);

}  // namespace models::own
