// Weights that are computed in each forward and assigned to the layer.
#include "tests/programs_test/training_program.h"

namespace programs {
namespace {

namespace nn = torch::nn;

/// Weight norm as C++ programs write it: the layer's member is computed anew in each forward.
struct WeightNormLinearImpl : nn::Module {
  WeightNormLinearImpl(int64_t in, int64_t out)
      : linear(register_module("linear", nn::Linear(in, out))) {
    weight_v = register_parameter("weight_v", linear->weight.detach().clone());
    weight_g = register_parameter("weight_g", linear->weight.detach().norm(2, 1, true).clone());
  }
  Tensor forward(const Tensor& x) {
    linear->weight = weight_v * (weight_g / weight_v.norm(2, 1, true));
    return linear(x);
  }
  nn::Linear linear;
  Tensor weight_v, weight_g;
};
TORCH_MODULE(WeightNormLinear);

struct WeightNormConvImpl : nn::Module {
  WeightNormConvImpl(int64_t in, int64_t out, int64_t dilation)
      : conv(register_module(
            "conv",
            nn::Conv1d(nn::Conv1dOptions(in, out, 3).padding(dilation).dilation(dilation)))) {
    weight_v = register_parameter("weight_v", conv->weight.detach().clone());
    weight_g =
        register_parameter("weight_g", torch::norm_except_dim(conv->weight.detach()).clone());
  }
  Tensor forward(const Tensor& x) {
    conv->weight = torch::_weight_norm(weight_v, weight_g, 0);
    return conv(x);
  }
  nn::Conv1d conv;
  Tensor weight_v, weight_g;
};
TORCH_MODULE(WeightNormConv);

struct TemporalNetImpl : nn::Module {
  TemporalNetImpl()
      : conv1(register_module("conv1", WeightNormConv(5, 11, 1))),
        conv2(register_module("conv2", WeightNormConv(11, 7, 2))),
        head(register_module("head", WeightNormLinear(7, 3))) {}
  Tensor forward(const Tensor& x) {
    return head(torch::tanh(conv2(torch::tanh(conv1(x)))).mean(-1));
  }
  WeightNormConv conv1, conv2;
  WeightNormLinear head;
};
TORCH_MODULE(TemporalNet);

void weight_norm(Device& device) {
  auto model = Device::make(1, [] { return TemporalNet(); });
  // Registered, but what the members hold is computed.
  for (const char* name : {"conv1.conv.weight", "conv2.conv.weight", "head.linear.weight"}) {
    device.leave_out(name);
  }
  const auto x_of = [&](int step) { return device.part(numbers({4, 5, 9}, step)); };
  device.initialize(model, [&] { model->forward(x_of(0)); });
  Replica replica(device, model);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-2));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Tensor out = replica.forward(x_of(step));
    const Tensor loss = nn::functional::cross_entropy(out, device.part(classes({4}, 3, step)));
    loss.backward();
    device.note_mean("loss", loss);
    device.note_rows("output", out);
    device.note_gradients("model", *model);
    optimizer.step();
  }
  device.note_model("model", *model);
}
TRAINING_PROGRAM(weight_norm);

}  // namespace
}  // namespace programs
