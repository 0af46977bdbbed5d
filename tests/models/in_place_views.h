#pragma once

#include <torch/torch.h>

// An author who saves memory: everything is in place, results are written into views of buffers
// that were allocated before, views are taken apart and changed through each other.
namespace models::in_place {

using torch::indexing::Ellipsis;
using torch::indexing::None;
using torch::indexing::Slice;

struct Options {
  int64_t features = 7, hidden = 20, parts = 4, steps = 3, classes = 5;
};

struct InPlaceImpl : torch::nn::Module {
  explicit InPlaceImpl(const Options& o = {}) : options(o) {
    input = register_module("input", torch::nn::Linear(o.features, o.hidden));
    gates = register_module("gates", torch::nn::Linear(o.hidden, 4 * o.hidden));
    down = register_module("down", torch::nn::Linear(o.hidden, o.hidden));
    head = register_module("head", torch::nn::Linear(o.steps * o.hidden, o.classes));
    scale = register_parameter("scale", torch::ones({o.hidden}));
    running = register_buffer("running", torch::zeros({o.hidden}));
    seen = register_buffer("seen", torch::zeros({}, torch::kLong));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto B = x.size(0), H = options.hidden;
    auto h = input(x);
    h.mul_(scale).clamp_(-6, 6).relu_();
    auto outputs = torch::empty({options.steps, B, H}, h.options());
    for (int64_t t = 0; t < options.steps; ++t) {
      auto z = gates(h);
      auto parts = z.chunk(4, 1);
      auto i = torch::sigmoid(parts[0]);
      auto g = parts[1] / 2;
      g.mul_(i).add_(parts[2], 0.5);
      g.index_put_({Ellipsis, Slice(None, None, 2)}, g.index({Ellipsis, Slice(1, None, 2)}) * 0.5);
      auto view = g.view({B, options.parts, -1});
      view.select(1, 0).neg_();
      view.transpose(1, 2).narrow(2, 1, 2).mul_(0.7);
      g += parts[3].clone().sigmoid_();
      g.slice(1, 0, H / 2).addcmul_(i.slice(1, H / 2), i.slice(1, 0, H / 2), 0.1);
      auto next = down(g);
      next.unsqueeze_(1).transpose_(1, 2).squeeze_(2);
      next /= 1.5;
      next.masked_fill_(next > 2, 2.0);
      outputs[t].copy_(next);
      h = h + next;
    }
    if (is_training()) {
      torch::NoGradGuard no_grad;
      seen += 1;
      running.add_(outputs.abs().amax({0, 1}).gt(0).to(running.dtype()), 0.1);
    }
    outputs.select(0, 0).fill_(0.25);
    auto flat = outputs.permute({1, 0, 2}).reshape({B, -1});
    return head(flat);
  }

  Options options;
  torch::nn::Linear input{nullptr}, gates{nullptr}, down{nullptr}, head{nullptr};
  torch::Tensor scale, running, seen;
};
TORCH_MODULE(InPlace);

}  // namespace models::in_place
