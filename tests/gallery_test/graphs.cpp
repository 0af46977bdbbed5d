#include <torch/torch.h>

#include "tests/gallery_test/exhibit.h"

// What a backward goes through: routers, shared weights, hooks, adapters, layers in another order.
namespace gallery {
namespace {

/// Each row goes to its best expert; experts that get too many are punished.
struct Router : Program {
  Router() {
    router = register_module("router", torch::nn::Linear(6, 4));
    for (int i = 0; i < 4; ++i) experts->push_back(torch::nn::Linear(6, 6));
    register_module("experts", experts);
  }
  Tensor loss(const Tensors& rows) override {
    const Tensor& x = rows[0];
    const Tensor chances = torch::softmax(router(x), -1);
    const auto [best, which] = chances.max(-1);
    const Tensor chosen = torch::one_hot(which, 4).to(x.dtype());
    Tensor y = torch::zeros_like(x);
    for (int64_t i = 0; i < 4; ++i) {
      const Tensor part = experts[i]->as<torch::nn::Linear>()->forward(x);
      y = y + part * (best * chosen.select(1, i)).unsqueeze(-1);
    }
    note("counts", chosen);
    return y.pow(2).mean() + 4 * (chosen.mean(0) * chances.mean(0)).sum();
  }
  torch::nn::Linear router{nullptr};
  torch::nn::ModuleList experts;
};

/// x w w: one weight on a path twice, whose gradient a split backward must take once a use.
struct TwiceOnAPath : Program {
  TwiceOnAPath() {
    weight = register_parameter("weight", torch::tensor({{0.4, -0.2}, {0.7, 0.3}}));
    mid = register_module("mid", torch::nn::Linear(torch::nn::LinearOptions(2, 2).bias(false)));
    torch::nn::init::eye_(mid->weight);
    mid->weight.requires_grad_(false);
  }
  Tensor loss(const Tensors& rows) override {
    return mid(rows[0].matmul(weight)).matmul(weight).sum(-1).mean();
  }
  Tensor weight;
  torch::nn::Linear mid{nullptr};
};

/// A hook whose gradient lies transposed in memory.
struct TransposedGradient : Program {
  TransposedGradient() {
    first = register_module("first", torch::nn::Linear(6, 6));
    up = register_module("up", torch::nn::Linear(6, 9));
    down = register_module("down", torch::nn::Linear(9, 6));
  }
  static Tensor transposed(const Tensor& gradient) { return (2 * gradient).t().contiguous().t(); }
  Tensor loss(const Tensors& rows) override {
    const Tensor h = torch::tanh(first(rows[0]));
    if (h.requires_grad()) h.register_hook(transposed);
    const Tensor wide = torch::tanh(up(h));
    if (wide.requires_grad()) wide.register_hook(transposed);
    return down(wide).pow(2).mean();
  }
  torch::nn::Linear first{nullptr}, up{nullptr}, down{nullptr};
};

/// Layers registered as A, B, C and used as A, C, B; B is left out at odd steps, A comes twice, and
/// from the third step on the order is another.
struct OtherOrder : Program {
  OtherOrder() {
    for (const char* name : {"a", "b", "c"}) {
      layers.push_back(register_module(name, torch::nn::Linear(6, 6)));
    }
  }
  Tensor loss(const Tensors& rows) override {
    Tensor h = torch::tanh(layers[0](rows[0]));
    if (step >= 3) h = torch::tanh(layers[0](h));
    if (step >= 3 && step % 2 == 0) h = torch::tanh(layers[1](h));
    h = torch::tanh(layers[2](h));
    if (step < 3 && step % 2 == 0) h = torch::tanh(layers[1](h));
    return torch::tanh(layers[0](h)).pow(2).mean();
  }
  void look_at(const Tensors& batch) override { step = batch[1][0].item<int64_t>(); }
  std::vector<torch::nn::Linear> layers;
  int64_t step = 0;
};

/// The same, with a number of all weights in its log.
struct LoggedNorms : OtherOrder {
  bool after_backward() override {
    double sum = 0;  // of the weights as the step before left them
    for (const Tensor& parameter : parameters()) sum += parameter.norm().item<double>();
    logged["sum of norms"] = sum;
    return true;
  }
};

/// Frozen layers that are cut by column, by row and as experts, each with two thin factors beside
/// it.
struct Adapters : Program {
  Adapters() {
    for (const auto& [name, in, out] : std::vector<std::tuple<std::string, int64_t, int64_t>>{
             {"up", 6, 9}, {"down", 9, 6}, {"expert", 6, 6}}) {
      base.push_back(register_module(name, torch::nn::Linear(in, out)));
      for (Tensor& parameter : base.back()->parameters()) parameter.requires_grad_(false);
      a.push_back(register_parameter(name + "_a", torch::randn({2, in})));
      b.push_back(register_parameter(name + "_b", torch::randn({out, 2})));
    }
  }
  Tensor adapted(int i, const Tensor& x) {
    return base[i](x) + x.matmul(a[i].t()).matmul(b[i].t());
  }
  Tensor loss(const Tensors& rows) override {
    const Tensor h = adapted(1, torch::gelu(adapted(0, rows[0])));
    const Tensor chosen = torch::sigmoid(h.sum(-1, true));
    return (h + chosen * adapted(2, h) - rows[1]).pow(2).mean();
  }
  std::vector<torch::nn::Linear> base;
  Tensors a, b;
};

Tensors rows_of_6(int /*step*/) {
  return {torch::randn({8, 6}), torch::randn({8, 6})};
}

}  // namespace

std::vector<Exhibit> graphs() {
  std::vector<Exhibit> all;
  const auto add = [&](Exhibit exhibit) -> Exhibit& {
    return all.emplace_back(std::move(exhibit));
  };

  add({"G5", "Megatron#7452", made<Router>, rows_of_6}).by_parts = true;
  Exhibit& twice = add({"G7", "pytorch#180952", made<TwiceOnAPath>, [](int) {
                          return Tensors{torch::tensor({{1.1, -0.7}}).expand({4, 2}).contiguous()};
                        }});
  twice.right = {{"loss", torch::scalar_tensor(-0.44)},
                 {"gradient of weight", torch::tensor({{0.17, 1.05}, {-0.57, -1.13}})}};
  add({"G9", "SkyRL#1886", made<TransposedGradient>, rows_of_6});
  const auto numbered = [](int step) {
    return Tensors{torch::randn({8, 6}), torch::full({8}, int64_t(step))};
  };
  Exhibit& order = add({"G18", "Megatron#950, #4609", made<OtherOrder>, numbered});
  order.steps = 10;
  order.skips_layers = true;
  Exhibit& logged = add({"G18 logged", "#7131", made<LoggedNorms>, numbered});
  logged.steps = 10;
  logged.skips_layers = true;
  // A parameter on another stage has no number outside a step.
  logged.layouts = {{1, 2},  {1, 3},  {1, 4},  {2, 1},     {2, 2},
                    zero(1), zero(2), zero(3), zero(2, 2), zero(3, 2)};
  add({"G24", "Megatron-Bridge#5634", made<Adapters>, rows_of_6});
  return all;
}

}  // namespace gallery
