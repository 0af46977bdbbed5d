// Parameters that the first batch decides.
#include "tests/programs_test/training_program.h"

namespace programs {
namespace {

namespace nn = torch::nn;

/// Scale and shift that the first batch decides, as Glow's.
struct ActNormImpl : nn::Module {
  explicit ActNormImpl(int64_t channels, bool by_set_data) : by_set_data(by_set_data) {
    loc = register_parameter("loc", torch::zeros({1, channels, 1}));
    log_scale = register_parameter("log_scale", torch::zeros({1, channels, 1}));
    initialized = register_buffer("initialized", torch::zeros({1}, torch::kLong));
  }
  std::pair<Tensor, Tensor> forward(const Tensor& x) {
    if (is_training() && initialized.item<int64_t>() == 0) {
      const torch::NoGradGuard no_grad;
      const std::vector<int64_t> dims{0, 2};
      const Tensor mean = x.mean(dims, true), spread = (x - mean).pow(2).mean(dims, true).sqrt();
      if (by_set_data) {
        loc.set_data(-mean);
        log_scale.set_data(-torch::log(spread + 1e-6));
      } else {
        loc.copy_(-mean);
        log_scale.copy_(-torch::log(spread + 1e-6));
      }
      initialized.fill_(1);
    }
    const Tensor log_det = double(x.size(2)) * log_scale.sum();
    return {torch::exp(log_scale) * (x + loc), log_det.expand({x.size(0)})};
  }
  bool by_set_data;
  Tensor loc, log_scale, initialized;
};
TORCH_MODULE(ActNorm);

struct FlowStepImpl : nn::Module {
  FlowStepImpl(int64_t channels, bool by_set_data)
      : norm(register_module("norm", ActNorm(channels, by_set_data))),
        net1(
            register_module("net1", nn::Conv1d(nn::Conv1dOptions(channels / 2, 11, 3).padding(1)))),
        net2(register_module("net2", nn::Conv1d(nn::Conv1dOptions(11, channels, 3).padding(1)))) {
    weight =
        register_parameter("weight", torch::eye(channels) + 0.1 * numbers({channels, channels}, 1));
  }
  std::pair<Tensor, Tensor> forward(Tensor x) {
    auto [y, log_det] = norm(x);
    y = nn::functional::conv1d(y, weight.unsqueeze(-1));
    log_det = log_det + double(x.size(2)) * std::get<1>(torch::slogdet(weight));
    const auto halves = y.chunk(2, 1);
    const auto shift_scale = net2(torch::tanh(net1(halves[0]))).chunk(2, 1);
    const Tensor scale = torch::sigmoid(shift_scale[1] + 2.0);
    y = torch::cat({halves[0], (halves[1] + shift_scale[0]) * scale}, 1);
    return {y, log_det + torch::log(scale).sum({1, 2})};
  }
  ActNorm norm;
  nn::Conv1d net1, net2;
  Tensor weight;
};
TORCH_MODULE(FlowStep);

struct GlowImpl : nn::Module {
  explicit GlowImpl(bool by_set_data)
      : step1(register_module("step1", FlowStep(6, by_set_data))),
        step2(register_module("step2", FlowStep(6, by_set_data))) {}
  Tensor forward(const Tensor& x) {
    const auto [y, first] = step1(x);
    const auto [z, second] = step2(y);
    return -(-0.5 * (z.pow(2) + std::log(2 * M_PI))).sum({1, 2}) - first - second;
  }
  FlowStep step1, step2;
};
TORCH_MODULE(Glow);

void train_glow(Device& device, bool by_set_data) {
  auto model = Device::make(3, [&] { return Glow(by_set_data); });
  // The first batch decides, so that all data ranks are given the same one.
  const auto x_of = [&](int step) { return numbers({4, 6, 5}, 3.0 * step + 1) + 0.4; };
  device.initialize(model, [&] { model->forward(x_of(7)); });
  device.note_state("after initialize", *model);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-3));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Tensor loss = model->forward(x_of(step)).mean() / 30.0;
    loss.backward();
    device.note("loss", loss);
    device.note_gradients("model", *model);
    optimizer.step();
    device.note_state("model", *model);
  }
}
void glow(Device& device) {
  train_glow(device, false);
}
TRAINING_PROGRAM(glow);
void glow_by_set_data(Device& device) {
  train_glow(device, true);
}
TRAINING_PROGRAM(glow_by_set_data);

}  // namespace
}  // namespace programs
