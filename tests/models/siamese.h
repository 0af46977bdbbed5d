#pragma once

#include <torch/torch.h>

// Metric learning: one encoder for anchor, positive and negative, unit embeddings, distances to
// learned class proxies by cdist, a triplet margin on cosine similarity.
namespace models::siamese {

namespace F = torch::nn::functional;

struct EncoderImpl : torch::nn::Module {
  EncoderImpl(int64_t in, int64_t hidden, int64_t out)
      : body(register_module(
            "body",
            torch::nn::Sequential(torch::nn::Linear(in, hidden), torch::nn::PReLU(),
                                  torch::nn::LayerNorm(torch::nn::LayerNormOptions({hidden})),
                                  torch::nn::Linear(hidden, out)))) {}
  torch::Tensor forward(const torch::Tensor& x) {
    return F::normalize(body->forward(x), F::NormalizeFuncOptions().dim(-1));
  }
  torch::nn::Sequential body;
};
TORCH_MODULE(Encoder);

struct Output {
  torch::Tensor anchor, positive, negative, distances;
};

struct SiameseImpl : torch::nn::Module {
  explicit SiameseImpl(int64_t in = 9, int64_t hidden = 26, int64_t out = 10, int64_t classes = 7)
      : encoder(register_module("encoder", Encoder(in, hidden, out))),
        proxies(register_module("proxies", torch::nn::Embedding(classes, out))),
        temperature(register_parameter("temperature", torch::full({}, 2.0))) {}

  Output forward(const torch::Tensor& anchor, const torch::Tensor& positive,
                 const torch::Tensor& negative) {
    const auto a = encoder(anchor), p = encoder(positive), n = encoder(negative);
    const auto centers = F::normalize(proxies->weight, F::NormalizeFuncOptions().dim(1));
    return {a, p, n, torch::cdist(a, centers) * temperature.exp()};
  }

  Encoder encoder;
  torch::nn::Embedding proxies;
  torch::Tensor temperature;
};
TORCH_MODULE(Siamese);

inline torch::Tensor loss_function(const Output& out, const torch::Tensor& label) {
  const auto triplet = F::relu(F::cosine_similarity(out.anchor, out.negative) -
                               F::cosine_similarity(out.anchor, out.positive) + 0.3);
  const auto pull = F::pairwise_distance(out.anchor, out.positive);
  return triplet.mean() + 0.1 * pull.square().mean() + F::cross_entropy(-out.distances, label);
}

}  // namespace models::siamese
