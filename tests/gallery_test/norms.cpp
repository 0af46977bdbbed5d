#include <torch/torch.h>

#include <limits>

#include "tests/gallery_test/exhibit.h"

// Norms of gradients, and gradients of whole parameters that meet cut values.
namespace gallery {
namespace {

/// x [rows, 1] becomes two heads of two, which one weight scales: its gradient is the sum over
/// heads.
struct ScaledHeads : Program {
  ScaledHeads() {
    up = register_module("up", torch::nn::Linear(torch::nn::LinearOptions(1, 4).bias(false)));
    const torch::NoGradGuard no_grad;
    up->weight.copy_(torch::tensor({0.1200, 0.0400, 0.0197, -0.0077}).view({4, 1}));
    weight = register_parameter("weight", torch::ones({2}));
  }
  Tensor loss(const Tensors& rows) override {
    return (up(rows[0]).view({-1, 2, 2}) * weight).sum({1, 2}).mean();
  }
  torch::nn::Linear up{nullptr};
  Tensor weight;
};

/// Attention whose queries and keys are normed a head, by one weight for all heads.
struct NormedHeads : Program {
  NormedHeads() {
    for (const char* name : {"q", "k", "v", "o"}) {
      layers.push_back(register_module(name, torch::nn::Linear(12, 12)));
    }
    weight = register_parameter("weight", torch::ones({3}));
  }
  Tensor normed(const Tensor& x) {
    return x * torch::rsqrt(x.pow(2).mean(-1, true) + 1e-6) * weight;
  }
  Tensor heads(int i, const Tensor& x) {
    return layers[i](x).view({x.size(0), x.size(1), 4, 3}).transpose(1, 2);
  }
  Tensor loss(const Tensors& rows) override {
    const Tensor& x = rows[0];
    const Tensor found =
        torch::scaled_dot_product_attention(normed(heads(0, x)), normed(heads(1, x)), heads(2, x));
    return (layers[3](found.transpose(1, 2).reshape_as(x)) - rows[1]).pow(2).mean();
  }
  std::vector<torch::nn::Linear> layers;
  Tensor weight;
};

/// Every element of the table gets the gradient 1, half of it from its use as the head.
struct TiedOverStages : Program {
  TiedOverStages() {
    wte = register_module("wte", torch::nn::Embedding(40, 20));
    mid = register_module("mid", torch::nn::Linear(torch::nn::LinearOptions(20, 20).bias(false)));
    torch::nn::init::eye_(mid->weight);
    mid->weight.requires_grad_(false);
  }
  Tensor loss(const Tensors& rows) override {
    const Tensor h = mid(wte(rows[0]));
    const Tensor logits = torch::ones_like(h.slice(1, 0, 1)).matmul(wte->weight.t());
    return 0.5 * (h.sum({1, 2}).mean() + logits.sum({1, 2}).mean());
  }
  torch::nn::Embedding wte{nullptr};
  torch::nn::Linear mid{nullptr};
};

/// Two experts whose gradients have the squares 20 and 100.
struct TwoExperts : Program {
  TwoExperts() { experts = register_parameter("experts", torch::ones({2, 5})); }
  Tensor loss(const Tensors& rows) override { return (rows[0] * experts).sum({1, 2}).mean(); }
  Tensor experts;
};

Tensors of_two_experts(int /*step*/) {
  const Tensor x = torch::tensor({2.0, 20.0 / std::sqrt(20.0)}).view({2, 1}).expand({2, 5});
  return {x.expand({16, 2, 5}).contiguous()};
}

/// A loss scale by hand: all gradients are finite, or the step is left out and the scale halved.
struct LossScale : Program {
  LossScale() {
    up = register_module("up", torch::nn::Linear(5, 9));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({9})));
    down = register_module("down", torch::nn::Linear(9, 3));
    scale = 8;
  }
  Tensor loss(const Tensors& rows) override {
    return down(norm(torch::tanh(up(rows[0])) * rows[1])).pow(2).mean();
  }
  bool after_backward() override {
    bool finite = true;
    for (Tensor& parameter : parameters()) {
      finite = finite && torch::isfinite(parameter.grad()).all().item<bool>();
    }
    for (Tensor& parameter : parameters()) parameter.mutable_grad().div_(scale);
    if (!finite) scale /= 2;
    logged["scale"] = scale;
    return finite;
  }
  torch::nn::Linear up{nullptr}, down{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};

/// In the second step one element of the second data rank's rows is infinite.
Tensors overflowing(int step) {
  Tensor factor = torch::ones({4, 9});
  if (step == 1) factor[3][7] = std::numeric_limits<double>::infinity();
  return {torch::randn({4, 5}), factor};
}

/// Weights that are cut, whole ones behind cut values, and a table, clipped together.
struct Mixed : Program {
  Mixed() {
    table = register_module("table", torch::nn::Embedding(11, 6));
    up = register_module("up", torch::nn::Linear(6, 9));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({9})));
    down = register_module("down", torch::nn::Linear(9, 6));
  }
  Tensor loss(const Tensors& rows) override {
    const Tensor h = table(rows[0]);
    return ((h + down(norm(torch::gelu(up(h))))) - rows[1]).pow(2).mean() * 30;
  }
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear up{nullptr}, down{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};

/// A learned score a head, beside the scores of its keys.
struct Sinks : Program {
  Sinks() {
    for (const char* name : {"q", "k", "v", "o"}) {
      layers.push_back(register_module(name, torch::nn::Linear(12, 12)));
    }
    sinks = register_parameter("sinks", torch::randn({4}));
  }
  Tensor heads(int i, const Tensor& x) {
    return layers[i](x).view({x.size(0), x.size(1), 4, 3}).transpose(1, 2);
  }
  Tensor loss(const Tensors& rows) override {
    const Tensor& x = rows[0];
    const Tensor scores = heads(0, x).matmul(heads(1, x).transpose(-1, -2));
    const Tensor sink = sinks.view({1, 4, 1, 1}).expand({x.size(0), 4, x.size(1), 1});
    const Tensor weights = torch::softmax(torch::cat({scores, sink}, -1), -1);
    const Tensor found = weights.slice(-1, 0, x.size(1)).matmul(heads(2, x));
    return layers[3](found.transpose(1, 2).reshape_as(x)).pow(2).mean() * 30;
  }
  std::vector<torch::nn::Linear> layers;
  Tensor sinks;
};

Tensors rows_of_12(int /*step*/) {
  return {torch::randn({4, 5, 12}), torch::randn({4, 5, 12})};
}

}  // namespace

std::vector<Exhibit> norms() {
  std::vector<Exhibit> all;
  const auto add = [&](Exhibit exhibit) -> Exhibit& {
    return all.emplace_back(std::move(exhibit));
  };

  add({"G4", "Megatron#7452, #1446", made<ScaledHeads>,
       [](int) {
         return Tensors{torch::ones({4, 1})};
       }})
      .right = {{"gradient of weight", torch::tensor({0.1397, 0.0323})}};
  add({"G4 of 20 steps", "Megatron#7452", made<NormedHeads>, rows_of_12}).steps = 20;
  add({"G8", "Megatron#7227", made<TiedOverStages>,
       [](int) {
         return Tensors{torch::arange(40).expand({4, 40}).contiguous()};
       }})
      .right = {{"norm", torch::scalar_tensor(28.284)}};
  Exhibit& experts = add({"G13", "Megatron#6660, pytorch#160285, DeepSpeed#8469, Automodel#3816",
                          made<TwoExperts>, of_two_experts});
  experts.right = {{"norm", torch::scalar_tensor(10.954)}};
  experts.layouts = {{1, 2}, {1, 3}, {2, 1}, {2, 2}, zero(2), zero(3), zero(2, 2), zero(3, 2)};
  experts.plan = R"j({"experts": "shard(0)"})j";
  Exhibit& scaled = add({"G14", "Megatron-Bridge#5591", made<LossScale>, overflowing});
  scaled.right = {{"scale", torch::scalar_tensor(8.0)}, {"scale", torch::scalar_tensor(4.0), 1}};
  // Numbers of gradients by item() are those of a rank's own stage.
  scaled.layouts = {{1, 2},  {1, 3},  {1, 4},  {2, 1},     {2, 2},
                    zero(1), zero(2), zero(3), zero(2, 2), zero(3, 2)};
  add({"G15", "ROCm/TransformerEngine#715, tt-metal#35284", made<Mixed>, [](int) {
         return Tensors{torch::randint(11, {4, 5}), torch::randn({4, 5, 6})};
       }});
  add({"G22", "Megatron#7452", made<Sinks>, rows_of_12});
  return all;
}

}  // namespace gallery
