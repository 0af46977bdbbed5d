// Forwards that take derivatives themselves, and are the example: networks that know an equation,
// forces of an energy, a wave function's local energy, a critic's loss.
#include "tests/programs_test/training_program.h"

namespace programs {
namespace {

namespace nn = torch::nn;

Tensor derivative(const Tensor& of, const Tensor& by) {
  return torch::autograd::grad({of.sum()}, {by}, {}, /*retain_graph=*/true,
                               /*create_graph=*/true)[0];
}

/// Burgers' equation: u_t + u u_x = u_xx / 100, at points (t, x).
struct BurgersImpl : nn::Module {
  Tensor u(const Tensor& at) { return out(torch::tanh(hidden(torch::tanh(in(at))))); }
  Tensor forward(const Tensor& points) {
    const Tensor at = points.detach().requires_grad_(true);
    const Tensor value = u(at), slope = derivative(value, at);
    const Tensor curvature = derivative(slope.select(1, 1), at).select(1, 1);
    const Tensor residual =
        slope.select(1, 0) + value.squeeze(1) * slope.select(1, 1) - 0.01 * curvature;
    return residual.pow(2).mean();
  }
  nn::Linear in{register_module("in", nn::Linear(2, 13))};
  nn::Linear hidden{register_module("hidden", nn::Linear(13, 11))};
  nn::Linear out{register_module("out", nn::Linear(11, 1))};
};
TORCH_MODULE(Burgers);

/// Energies of molecules by messages between their atoms, and the forces.
struct ForceFieldImpl : nn::Module {
  Tensor forward(const Tensor& positions) {  // [molecules, 4, 3]
    const Tensor at = positions.detach().requires_grad_(true);
    const int64_t molecules = at.size(0), atoms = at.size(1);
    const Tensor kinds = torch::arange(atoms).remainder(3).expand({molecules, atoms});
    const Tensor apart = at.unsqueeze(2) - at.unsqueeze(1) + torch::eye(atoms).unsqueeze(-1);
    const Tensor weights = filter2(torch::silu(filter1(apart.pow(2).sum(-1, true))));
    const Tensor x = table(kinds);
    const Tensor messages = (x.unsqueeze(1) * weights).sum(2);
    const Tensor h = norm(x + messages);
    const Tensor energy = out(torch::silu(up(h))).sum({1, 2});
    const Tensor forces = -derivative(energy, at);
    return energy.pow(2).mean() + forces.pow(2).mean();
  }
  nn::Embedding table{register_module("table", nn::Embedding(3, 8))};
  nn::Linear filter1{register_module("filter1", nn::Linear(1, 11))};
  nn::Linear filter2{register_module("filter2", nn::Linear(11, 8))};
  nn::LayerNorm norm{register_module("norm", nn::LayerNorm(nn::LayerNormOptions({8})))};
  nn::Linear up{register_module("up", nn::Linear(8, 13))};
  nn::Linear out{register_module("out", nn::Linear(13, 1))};
};
TORCH_MODULE(ForceField);

/// Variational Monte Carlo: the local energy has the Laplacian of a network with attention.
struct WaveFunctionImpl : nn::Module {
  Tensor log_psi(const Tensor& electrons) {  // [walkers, electrons, 3]
    const auto heads = [](const Tensor& t) { return t.unflatten(-1, {2, 4}).transpose(1, 2); };
    const Tensor h = in(electrons);
    const Tensor scores = heads(query(h)).matmul(heads(key(h)).transpose(2, 3));
    const Tensor mixed = torch::softmax(scores, -1).matmul(heads(value(h)));
    return out(torch::tanh(h + projection(mixed.transpose(1, 2).flatten(2)))).sum({1, 2});
  }
  Tensor forward(const Tensor& walkers) {
    const Tensor at = walkers.detach().requires_grad_(true);
    const Tensor slope = derivative(log_psi(at), at).flatten(1);
    Tensor laplacian = torch::zeros({at.size(0)}, at.options().requires_grad(false));
    for (int64_t i = 0; i < slope.size(1); ++i) {
      laplacian = laplacian + derivative(slope.select(1, i), at).flatten(1).select(1, i);
    }
    const Tensor energy = -0.5 * (laplacian + slope.pow(2).sum(1)) + at.pow(2).sum({1, 2}) / 2;
    return (energy.detach() * log_psi(at)).mean();
  }
  nn::Linear in{register_module("in", nn::Linear(3, 8))};
  nn::Linear query{register_module("query", nn::Linear(8, 8))};
  nn::Linear key{register_module("key", nn::Linear(8, 8))};
  nn::Linear value{register_module("value", nn::Linear(8, 8))};
  nn::Linear projection{register_module("projection", nn::Linear(8, 8))};
  nn::Linear out{register_module("out", nn::Linear(8, 1))};
};
TORCH_MODULE(WaveFunction);

/// A critic that returns its loss, with the penalty on its slope (WGAN-GP).
struct PenalizedImpl : nn::Module {
  Tensor judge(const Tensor& x) {
    const Tensor h = torch::max_pool2d(torch::relu(norm(conv2(torch::tanh(conv1(x))))), 2);
    return head(nn::functional::leaky_relu(fc(h.flatten(1))));
  }
  Tensor forward(const Tensor& images) {
    const Tensor mixed = (0.3 * images).requires_grad_(true);
    const Tensor slope = derivative(judge(mixed), mixed);
    return judge(images).mean() + (slope.flatten(1).norm(2, 1) - 1).pow(2).mean();
  }
  nn::Conv2d conv1{register_module("conv1", nn::Conv2d(nn::Conv2dOptions(1, 6, 3).padding(1)))};
  nn::Conv2d conv2{register_module("conv2", nn::Conv2d(nn::Conv2dOptions(6, 4, 3).padding(1)))};
  nn::GroupNorm norm{register_module("norm", nn::GroupNorm(2, 4))};
  nn::Linear fc{register_module("fc", nn::Linear(4 * 9, 10))};
  nn::Linear head{register_module("head", nn::Linear(10, 1))};
};
TORCH_MODULE(Penalized);

/// The forward is the loss, as it stands in the example.
template <typename Model>
void train(Device& device, at::IntArrayRef sizes) {
  auto model = Device::make(7, [] { return Model(); });
  const auto batch = [&](int step) { return device.part(numbers(sizes, 2.0 * step)); };
  device.initialize(model, [&] { model->forward(batch(0)).backward(); });
  for (const Tensor& p : model->parameters()) EXPECT_FALSE(p.grad().defined());
  Replica replica(device, model);
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(1e-3));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const Tensor loss = replica.forward(batch(step));
    loss.backward();
    device.note_mean("loss", loss);
    device.note_gradients("model", *model);
    optimizer.step();
  }
  device.note_model("model", *model);
}

void burgers(Device& device) {
  train<Burgers>(device, {12, 2});
}
TRAINING_PROGRAM(burgers);

void force_field(Device& device) {
  train<ForceField>(device, {4, 4, 3});
}
TRAINING_PROGRAM(force_field);

void wave_function(Device& device) {
  train<WaveFunction>(device, {4, 2, 3});
}
TRAINING_PROGRAM(wave_function);

void critic_with_its_penalty(Device& device) {
  train<Penalized>(device, {4, 1, 6, 6});
}
TRAINING_PROGRAM(critic_with_its_penalty);

}  // namespace
}  // namespace programs
