// Derivatives of derivatives: a critic whose gradient at its input is held to length one (WGAN-GP).
#include "tests/programs_test/training_program.h"

namespace programs {
namespace {

namespace nn = torch::nn;

struct CriticImpl : nn::Module {
  CriticImpl()
      : conv1(register_module("conv1", nn::Conv2d(nn::Conv2dOptions(1, 7, 3).padding(1)))),
        conv2(register_module("conv2", nn::Conv2d(nn::Conv2dOptions(7, 1, 3).padding(1)))),
        fc(register_module("fc", nn::Linear(25, 9))),
        head(register_module("head", nn::Linear(9, 1))) {}
  Tensor forward(const Tensor& x) {
    // One channel over several ranks: all but the first hold none of it.
    const Tensor y = x + conv2(torch::tanh(conv1(x)));
    return head(torch::tanh(fc(y.flatten(1))));
  }
  nn::Conv2d conv1, conv2;
  nn::Linear fc, head;
};
TORCH_MODULE(Critic);

void train_critic(Device& device, bool by_example) {
  auto critic = Device::make(1, [] { return Critic(); });
  const auto images = [&](double start) { return device.part(numbers({4, 1, 5, 5}, start)); };
  device.initialize(critic,
                    by_example ? [&] { critic->forward(images(0)); } : std::function<void()>());
  torch::optim::Adam optimizer(critic->parameters(), torch::optim::AdamOptions(1e-3));
  for (int step = 0; step < 3; ++step) {
    const Tensor real = images(step), fake = images(50.0 + step);
    const Tensor mixed = (0.3 * real + 0.7 * fake).detach().requires_grad_(true);
    const Tensor judged = critic->forward(mixed);
    const Tensor gradient = torch::autograd::grad({judged}, {mixed}, {torch::ones_like(judged)},
                                                  /*retain_graph=*/true, /*create_graph=*/true)[0];
    device.note_rows("gradient at the images", gradient);
    const Tensor penalty = (gradient.flatten(1).norm(2, 1) - 1).pow(2).mean();
    const Tensor loss = critic->forward(fake).mean() - critic->forward(real).mean() + 10 * penalty;
    optimizer.zero_grad();
    loss.backward();
    if (device.averages_by_hand()) {
      for (auto& p : critic->parameters()) {
        const torch::NoGradGuard no_grad;
        Tensor part = oslo::local_tensor(p.grad());
        part.copy_(device.mpu().data_group()->all_reduce(part.clone()) / device.mesh().data);
      }
    }
    device.note_mean("loss", loss);
    device.note_gradients("critic", *critic);
    optimizer.step();
  }
  device.note_state("critic", *critic);
}
void gradient_penalty(Device& device) {
  train_critic(device, true);
}
TRAINING_PROGRAM(gradient_penalty);
void gradient_penalty_by_structure(Device& device) {
  train_critic(device, false);
}
TRAINING_PROGRAM(gradient_penalty_by_structure);

/// A flat minimum: the gradient at a weight is to be small.
struct FlatNetImpl : nn::Module {
  FlatNetImpl()
      : input(register_module("input", nn::Linear(7, 15))),
        conv1(register_module("conv1", nn::Conv2d(nn::Conv2dOptions(1, 1, 3).padding(1)))),
        conv2(register_module("conv2", nn::Conv2d(nn::Conv2dOptions(1, 1, 3).padding(1)))),
        head(register_module("head", nn::Linear(15, 7))) {}
  Tensor forward(const Tensor& x) {
    const Tensor h = torch::tanh(input(x));
    return head(h + conv2(torch::tanh(conv1(h.unsqueeze(1)))).squeeze(1));
  }
  nn::Linear input;
  nn::Conv2d conv1, conv2;
  nn::Linear head;
};
TORCH_MODULE(FlatNet);

void penalty_at_a_weight(Device& device) {
  auto model = Device::make(2, [] { return FlatNet(); });
  // By structure, which cuts all there is.
  device.initialize(model);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Tensor logits = model->forward(numbers({4, 5, 7}, step));
    const Tensor loss = nn::functional::cross_entropy(logits.flatten(0, 1), classes({20}, 7, step));
    const Tensor gradient =
        torch::autograd::grad({loss}, {model->input->weight}, {}, true, true)[0];
    device.note("gradient", gradient);
    (loss + gradient.pow(2).sum()).backward();
    device.note_gradients("model", *model);
    optimizer.step();
  }
  device.note_state("model", *model);
}
TRAINING_PROGRAM(penalty_at_a_weight);

}  // namespace
}  // namespace programs
