// RegNet (Radosavovic et al. 2020): bottlenecks around a grouped convolution, squeeze and
// excitation, a projection beside where the size changes.
#include "tests/programs_test/training_program.h"

namespace programs {
namespace {

namespace nn = torch::nn;

nn::Conv2d conv(int64_t in, int64_t out, int64_t kernel, int64_t stride = 1, int64_t groups = 1) {
  return nn::Conv2d(nn::Conv2dOptions(in, out, kernel)
                        .stride(stride)
                        .padding(kernel / 2)
                        .groups(groups)
                        .bias(false));
}

struct SqueezeExciteImpl : nn::Module {
  SqueezeExciteImpl(int64_t width, int64_t squeezed)
      : fc1(register_module("fc1", nn::Conv2d(nn::Conv2dOptions(width, squeezed, 1)))),
        fc2(register_module("fc2", nn::Conv2d(nn::Conv2dOptions(squeezed, width, 1)))) {}
  Tensor forward(const Tensor& x) {
    const Tensor mean = torch::adaptive_avg_pool2d(x, {1, 1});
    return x * torch::sigmoid(fc2(torch::relu(fc1(mean))));
  }
  nn::Conv2d fc1, fc2;
};
TORCH_MODULE(SqueezeExcite);

/// Statistics of a batch are each data rank's own, so norms are over groups of channels.
struct BottleneckImpl : nn::Module {
  BottleneckImpl(int64_t in, int64_t out, int64_t stride, int64_t group_width)
      : a(register_module("a", conv(in, out, 1))),
        a_norm(register_module("a_norm", nn::GroupNorm(1, out))),
        b(register_module("b", conv(out, out, 3, stride, out / group_width))),
        b_norm(register_module("b_norm", nn::GroupNorm(1, out))),
        se(register_module("se", SqueezeExcite(out, 3))),
        c(register_module("c", conv(out, out, 1))),
        c_norm(register_module("c_norm", nn::GroupNorm(1, out))) {
    if (in != out || stride != 1) proj = register_module("proj", conv(in, out, 1, stride));
  }
  Tensor forward(const Tensor& x) {
    Tensor y = torch::relu(a_norm(a(x)));
    y = se(torch::relu(b_norm(b(y))));
    return torch::relu((proj ? proj(x) : x) + c_norm(c(y)));
  }
  nn::Conv2d a;
  nn::GroupNorm a_norm;
  nn::Conv2d b;
  nn::GroupNorm b_norm;
  SqueezeExcite se;
  nn::Conv2d c;
  nn::GroupNorm c_norm;
  nn::Conv2d proj{nullptr};
};
TORCH_MODULE(Bottleneck);

struct RegNetImpl : nn::Module {
  Tensor forward(const Tensor& images) {
    const Tensor x = block2(block1(block0(torch::relu(stem(images)))));
    return head(torch::adaptive_avg_pool2d(x, {1, 1}).flatten(1));
  }
  nn::Conv2d stem{register_module("stem", conv(3, 7, 3, 2))};
  Bottleneck block0{register_module("block0", Bottleneck(7, 10, 2, 2))};
  Bottleneck block1{register_module("block1", Bottleneck(10, 10, 1, 2))};
  Bottleneck block2{register_module("block2", Bottleneck(10, 15, 2, 5))};
  nn::Linear head{register_module("head", nn::Linear(15, 4))};
};
TORCH_MODULE(RegNet);

void regnet(Device& device) {
  auto model = Device::make(3, [] { return RegNet(); });
  const auto images = [&](int step) { return device.part(numbers({4, 3, 17, 17}, 2.0 * step)); };
  device.initialize(model, [&] { model->forward(images(0)); });
  Replica replica(device, model);
  torch::optim::SGD optimizer(
      model->parameters(),
      torch::optim::SGDOptions(0.05).momentum(0.9).nesterov(true).weight_decay(5e-4));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Tensor loss = nn::functional::cross_entropy(replica.forward(images(step)),
                                                      device.part(classes({4}, 4, step)));
    loss.backward();
    device.note_mean("loss", loss);
    device.note_gradients("model", *model);
    optimizer.step();
  }
  device.note_model("model", *model);
}
TRAINING_PROGRAM(regnet);

}  // namespace
}  // namespace programs
