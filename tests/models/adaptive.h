#pragma once

#include <torch/torch.h>

// Adaptive computation time: a cell that ponders until every sample wants to stop, asked with
// item(); rows that went on are picked with a mask, and an expert is chosen by reading an index.
namespace models::adaptive {

struct Options {
  int64_t features = 6, hidden = 16, refinements = 3, classes = 4, max_steps = 5;
  double threshold = 0.9;
};

struct Output {
  torch::Tensor logits, ponder;
};

struct AdaptiveImpl : torch::nn::Module {
  explicit AdaptiveImpl(const Options& o = {}) : options(o) {
    embed = register_module("embed", torch::nn::Linear(o.features, o.hidden));
    transition = register_module("transition", torch::nn::Linear(o.hidden, o.hidden));
    halting = register_module("halting", torch::nn::Linear(o.hidden, 1));
    router = register_module("router", torch::nn::Linear(o.hidden, o.refinements));
    refine = register_module("refine", torch::nn::Linear(o.hidden, o.hidden));
    output = register_module("output", torch::nn::Linear(o.hidden, o.classes));
  }

  Output forward(const torch::Tensor& x) {
    auto state = torch::tanh(embed(x));
    auto halted = torch::zeros({x.size(0)}, state.options());
    auto remainder = torch::zeros({x.size(0)}, state.options());
    auto mixed = torch::zeros_like(state);
    for (int64_t step = 0; step < options.max_steps; ++step) {
      const auto p = torch::sigmoid(halting(state)).squeeze(-1);
      const auto running = halted < options.threshold;
      if (!running.any().item<bool>()) break;
      const bool last = step + 1 == options.max_steps;
      const auto stops =
          running & ((halted + p >= options.threshold) | torch::full_like(running, last));
      const auto weight =
          torch::where(stops, 1 - halted, torch::where(running, p, torch::zeros_like(p)));
      mixed = mixed + weight.unsqueeze(-1) * state;
      remainder = remainder + torch::where(stops, 1 - halted, torch::zeros_like(p));
      halted = halted + weight;
      state = torch::tanh(transition(state));
    }
    const auto probability = torch::softmax(router(mixed), -1);
    std::vector<torch::Tensor> rows;
    for (int64_t i = 0; i < x.size(0); ++i) {
      const auto times = probability[i].argmax().item<int64_t>();
      auto row = torch::relu(refine(mixed[i]));
      for (int64_t k = 0; k < times; ++k) row = row + torch::tanh(refine(row));
      rows.push_back(probability[i][times] * row);
    }
    auto y = torch::stack(rows);
    // Large rows are shrunk; there may be none.
    const auto large = (y.norm(2, 1) > 1.0).nonzero().squeeze(1);
    if (large.numel() > 0) y = y.index_add(0, large, y.index({large}), -0.5);
    return {output(y), remainder};
  }

  Options options;
  torch::nn::Linear embed{nullptr}, transition{nullptr}, halting{nullptr}, router{nullptr},
      refine{nullptr}, output{nullptr};
};
TORCH_MODULE(Adaptive);

}  // namespace models::adaptive
