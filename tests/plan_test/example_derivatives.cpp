// An example that takes derivatives (backward(), torch::autograd::grad) is run on shapes too:
// LibTorch's backward has no kernels for some of them. What has a gradient keeps the one it had.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "tests/support/initialized.h"
#include "tests/support/parity.h"

namespace oslo {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using torch::Tensor;

namespace nn = torch::nn;

struct LayersImpl : nn::Module {
  Tensor features(const Tensor& x) {  // [rows, 3, 8, 8]
    Tensor h = group(torch::relu(batch(conv(x))));
    h = h + nn::functional::interpolate(torch::avg_pool2d(h, 2),
                                        nn::functional::InterpolateFuncOptions()
                                            .scale_factor(std::vector<double>{2., 2.})
                                            .mode(torch::kBilinear)
                                            .align_corners(false));
    h = layer(torch::max_pool2d(h, 2).flatten(2).transpose(1, 2));
    h = std::get<0>(gru(h));
    return down(torch::gelu(up(h)));
  }
  nn::Conv2d conv{register_module("conv", nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1)))};
  nn::BatchNorm2d batch{register_module("batch", nn::BatchNorm2d(8))};
  nn::GroupNorm group{register_module("group", nn::GroupNorm(2, 8))};
  nn::LayerNorm layer{register_module("layer", nn::LayerNorm(nn::LayerNormOptions({8})))};
  nn::GRU gru{register_module("gru", nn::GRU(nn::GRUOptions(8, 8).batch_first(true)))};
  nn::Linear up{register_module("up", nn::Linear(8, 32))};
  nn::Linear down{register_module("down", nn::Linear(32, 8))};
};
TORCH_MODULE(Layers);

/// The way of the example, and whether it can be run on shapes.
struct Example {
  const char* name;
  void (*run)(Layers& model, const Tensor& x);
  bool on_shapes = true;
};

Tensor slope_of(const Tensor& y, const Tensor& at) {
  return torch::autograd::grad({y}, {at}, {}, true, /*create_graph=*/true)[0];
}

const std::vector<Example> kExamples = {
    {"a loss and its backward pass",
     [](Layers& model, const Tensor& x) { model->features(x).pow(2).mean().backward(); }},
    {"the slope at the input, and a backward pass through it",
     [](Layers& model, const Tensor& x) {
       const Tensor at = x.detach().requires_grad_(true);
       slope_of(model->features(at).pow(2).sum(), at).pow(2).sum().backward();
     }},
    {"the slope at an input that the program keeps",
     [](Layers& model, const Tensor& x) {
       slope_of(model->features(x * 2).sum(), x).pow(2).sum().backward();
     }},
    {"the slope at weights",
     [](Layers& model, const Tensor& x) {
       const Tensor loss = model->features(x).pow(2).mean();
       const auto slopes = torch::autograd::grad({loss}, {model->conv->weight, model->up->weight},
                                                 {}, true, /*create_graph=*/true);
       TORCH_CHECK(slopes[0].sizes() == model->conv->weight.sizes());
       (loss + slopes[0].pow(2).sum() + slopes[1].norm()).backward();
     }},
    {"the slope of a value in between",
     [](Layers& model, const Tensor& x) {
       const Tensor h = torch::tanh(model->features(x));
       const Tensor y = model->down(torch::gelu(model->up(h)));
       (y.sum() + slope_of(y.sum(), h).pow(2).sum()).backward();
     }},
    {"through the memory of a value",
     [](Layers& model, const Tensor& x) {
       const Tensor at = x.detach().requires_grad_(true);
       const Tensor y = model->features(at);
       TORCH_CHECK(y.data_ptr() != nullptr);
       slope_of(y.pow(2).sum(), at).pow(2).sum().backward();
     },
     false},
};

TEST(ExampleDerivatives, AreTakenOnShapesAndLeaveNoTrace) {
  run_as_threads(2, [](World world) {
    for (const Example& example : kExamples) {
      SCOPED_TRACE(example.name);
      Layers model = parity::make_seeded(3, [] { return Layers(); });
      const Tensor x = parity::make_seeded(4, [] {
                         return torch::randn({2, 3, 8, 8});
                       }).requires_grad_(true);
      const Tensor before = torch::full({32}, 0.5);
      model->up->bias.mutable_grad() = before;
      x.mutable_grad() = torch::ones_like(x);
      const Tensor of_x = x.grad();
      const Tensor mean = model->batch->running_mean.clone();
      InitializeOptions how = test::in(world);
      how.example_inputs = [&] { example.run(model, x); };
      const auto parallel = initialize(model, Config::parse(parity::tensor_parallel(2)), how);
      const std::string plan = parallel.plan().to_string();
      const std::string by_names = "could not be run on shapes";
      EXPECT_EQ(plan.find(by_names) == std::string::npos, example.on_shapes) << plan;
      for (const auto& item : model->named_parameters()) {
        EXPECT_EQ(item.value().grad().defined(), item.key() == "up.bias") << item.key();
      }
      EXPECT_TRUE(torch::equal(full_tensor(model->up->bias.grad()), torch::full({32}, 0.5)));
      EXPECT_TRUE(torch::equal(full_tensor(model->batch->running_mean), mean));
      EXPECT_TRUE(x.grad().is_same(of_x));
      if (example.on_shapes) {
        EXPECT_TRUE(torch::equal(of_x, torch::ones_like(x)));
      }
      model->zero_grad();
      if (example.on_shapes) example.run(model, x);
    }
  });
}

}  // namespace
}  // namespace oslo
