#pragma once

#include <torch/torch.h>

// A variational autoencoder after the PyTorch example, with the noise as an input.
namespace models::vae {

struct Output {
  torch::Tensor reconstruction, mu, logvar;
};

struct VaeImpl : torch::nn::Module {
  explicit VaeImpl(int64_t pixels = 35, int64_t hidden = 22, int64_t latent = 5)
      : fc1(pixels, hidden),
        fc21(hidden, latent),
        fc22(hidden, latent),
        fc3(latent, hidden),
        fc4(hidden, pixels) {
    register_module("fc1", fc1);
    register_module("fc21", fc21);
    register_module("fc22", fc22);
    register_module("fc3", fc3);
    register_module("fc4", fc4);
  }

  std::pair<torch::Tensor, torch::Tensor> encode(torch::Tensor x) {
    auto h1 = torch::nn::functional::relu(fc1->forward(x));
    return {fc21->forward(h1), fc22->forward(h1)};
  }

  torch::Tensor reparameterize(torch::Tensor mu, torch::Tensor logvar, torch::Tensor noise) {
    auto std = torch::exp(logvar.clamp(-8, 8) * 0.5);
    return noise.to(mu.dtype()).mul(std).add_(mu);
  }

  torch::Tensor decode(torch::Tensor z) {
    auto h3 = torch::nn::functional::relu(fc3->forward(z));
    return torch::sigmoid(fc4->forward(h3));
  }

  Output forward(torch::Tensor x, torch::Tensor noise) {
    auto [mu, logvar] = encode(x);
    return {decode(reparameterize(mu, logvar, noise)), mu, logvar};
  }

  torch::nn::Linear fc1, fc21, fc22, fc3, fc4;
};
TORCH_MODULE(Vae);

inline torch::Tensor loss_function(const Output& out, const torch::Tensor& x) {
  const auto batch = x.size(0);
  auto bce = torch::nn::functional::binary_cross_entropy(
      out.reconstruction, x,
      torch::nn::functional::BinaryCrossEntropyFuncOptions().reduction(torch::kSum));
  auto kld = -0.5 * torch::sum(1 + out.logvar - out.mu.pow(2) - out.logvar.exp());
  return (bce + kld) / batch;
}

}  // namespace models::vae
