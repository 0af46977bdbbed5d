// Layers whose weight a forward computes from other parameters: weight norm, spectral norm.
#include <gmock/gmock.h>

#include "tests/support/initialized.h"
#include "tests/support/parity.h"

namespace oslo {
namespace {

/// Weight norm as C++ programs write it: direction and length are parameters, the layer's own
/// weight is what they give.
struct WeightNormImpl : torch::nn::Module {
  explicit WeightNormImpl(bool on_layer) {
    conv = register_module("conv", torch::nn::Conv1d(6, 10, 3));
    const auto w = conv->weight.detach().clone();
    torch::nn::Module& owner = on_layer ? static_cast<torch::nn::Module&>(*conv) : *this;
    const auto length = w.norm(2, {1, 2}, true);
    v = owner.register_parameter("weight_v", w);
    g = owner.register_parameter("weight_g", length);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    conv->weight = g * v / v.norm(2, {1, 2}, true);
    return conv(x);
  }
  torch::nn::Conv1d conv{nullptr};
  torch::Tensor v, g;
};
TORCH_MODULE(WeightNorm);

/// Spectral norm: a buffer follows the largest singular vector.
struct SpectralImpl : torch::nn::Module {
  SpectralImpl() {
    linear = register_module("linear", torch::nn::Linear(10, 7));
    original = register_parameter("original", linear->weight.detach().clone());
    u = register_buffer("u", torch::ones({7}) / std::sqrt(7.0));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    torch::Tensor v;
    {
      const torch::NoGradGuard no_grad;
      v = torch::mv(original.t(), u);
      v = v / v.norm();
      u.copy_(torch::mv(original, v));
      u.div_(u.norm());
    }
    linear->weight = original / torch::dot(u.clone(), torch::mv(original, v));
    return linear(x);
  }
  torch::nn::Linear linear{nullptr};
  torch::Tensor original, u;
};
TORCH_MODULE(Spectral);

struct ComputedImpl : torch::nn::Module {
  explicit ComputedImpl(bool on_layer)
      : normed(register_module("normed", WeightNorm(on_layer))),
        spectral(register_module("spectral", Spectral())),
        head(register_module("head", torch::nn::Linear(7, 5))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return head(torch::tanh(spectral(torch::tanh(normed(x)).mean(-1))));
  }
  WeightNorm normed;
  Spectral spectral;
  torch::nn::Linear head;
};
TORCH_MODULE(Computed);

struct Way {
  int tensor, data;
  bool example, own_parameters, on_layer, forward_before;
};

void expect_computed_weights(const Way& way) {
  SCOPED_TRACE(c10::str("tensor ", way.tensor, " data ", way.data, " example ", way.example,
                        " own ", way.own_parameters, " on layer ", way.on_layer, " forward before ",
                        way.forward_before));
  run_as_threads(way.tensor * way.data, [&](World world) {
    at::set_num_threads(1);
    const auto make = [&] { return Computed(way.on_layer); };
    auto plain = parity::make_seeded(5, make), model = parity::make_seeded(5, make);
    const auto x = parity::make_seeded(6, [] { return torch::randn({4, 6, 9}, torch::kDouble); });
    for (auto each : {plain, model}) {
      each->to(torch::kFloat64);
      if (way.forward_before) each->forward(x);
    }
    const void* member = model->normed->conv->weight.unsafeGetTensorImpl();
    auto how = test::in(world);
    how.cut_own_parameters = way.own_parameters;
    if (way.example) how.example_inputs = [&] { model->forward(x); };
    const auto parallel =
        initialize(model, Config::parse(parity::tensor_parallel(way.tensor)), how);
    // What a forward computed before is let go of where the example shows that the next one
    // computes it again: its graph holds the parameters.
    const bool let_go = way.forward_before && way.example && way.tensor > 1;
    EXPECT_EQ(model->normed->conv->weight.unsafeGetTensorImpl() == member, !let_go);
    const auto& mpu = parallel.mpu();
    // Where nothing showed that the registered weights are not used, averaging asks for it.
    const bool shown = way.forward_before || (way.example && way.tensor > 1);
    DistributedDataParallel<Computed> ddp(model, mpu.data_group(),
                                          DDPOptions().find_unused_parameters(!shown));
    const auto own = x.tensor_split(way.data)[mpu.get_data_parallel_rank()];
    torch::optim::SGD a(plain->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
        b(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 3; ++step) {
      a.zero_grad();
      b.zero_grad();
      plain->forward(x).pow(2).mean().backward();
      ddp.forward(own).pow(2).mean().backward();
      parity::expect_gradients(*model, *plain);
      const double norm = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.5);
      EXPECT_NEAR(parallel.clip_grad_norm_(0.5), norm, 1e-9);
      a.step();
      b.step();
      parity::expect_weights(*model, *plain);
      parity::expect_close(full_tensor(model->spectral->u), plain->spectral->u, "u");
    }
    const Plan plan = parallel.plan();
    if (way.example) {
      EXPECT_TRUE(plan.gathers.empty()) << plan.to_string();
    }
    for (const PlanEntry& entry : plan.entries) {
      const bool seen = way.forward_before || (way.example && way.tensor > 1);
      if (entry.parameter != "normed.conv.weight" || !seen) continue;
      EXPECT_EQ(entry.placement, "replicate");
      EXPECT_THAT(entry.why, testing::HasSubstr("computed"));
    }
    if (way.own_parameters && way.tensor > 1) {
      EXPECT_TRUE(is_placed(model->normed->v));
    }
  });
}

TEST(ComputedWeights, AreMadeOfParametersThatArePlanned) {
  for (const auto& [tensor, data] : {std::pair(1, 1), {2, 1}, {3, 1}, {2, 2}}) {
    for (const bool on_layer : {false, true}) {
      for (const bool before : {false, true}) {
        expect_computed_weights({tensor, data, false, false, on_layer, before});
        expect_computed_weights({tensor, data, true, false, on_layer, before});
        if (tensor > 1) expect_computed_weights({tensor, data, true, true, on_layer, before});
      }
    }
  }
}

}  // namespace
}  // namespace oslo
