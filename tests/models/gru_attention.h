#pragma once

#include <torch/torch.h>

// Translation before transformers: a GRU reads both ways, a GRUCell writes word by word under
// teacher forcing and looks back with additive (Bahdanau) attention.
namespace models::seq2seq {

struct Options {
  int64_t source = 23, target = 29, embedding = 8, hidden = 10, attention = 7;
};

struct AdditiveAttentionImpl : torch::nn::Module {
  AdditiveAttentionImpl(int64_t keys, int64_t queries, int64_t size) {
    W = register_module("W",
                        torch::nn::Linear(torch::nn::LinearOptions(queries, size).bias(false)));
    U = register_module("U", torch::nn::Linear(keys, size));
    v = register_module("v", torch::nn::Linear(torch::nn::LinearOptions(size, 1).bias(false)));
  }

  torch::Tensor forward(const torch::Tensor& query, const torch::Tensor& projected,
                        const torch::Tensor& keys, const torch::Tensor& padded) {
    auto energy = v(torch::tanh(W(query).unsqueeze(1) + projected)).squeeze(2);
    energy = energy.masked_fill(padded, -std::numeric_limits<float>::infinity());
    const auto alpha = torch::softmax(energy, 1);
    return torch::bmm(alpha.unsqueeze(1), keys).squeeze(1);
  }

  torch::nn::Linear W{nullptr}, U{nullptr}, v{nullptr};
};
TORCH_MODULE(AdditiveAttention);

struct Seq2SeqImpl : torch::nn::Module {
  explicit Seq2SeqImpl(const Options& o = {}) : size(o.hidden) {
    source_embedding = register_module(
        "source_embedding",
        torch::nn::Embedding(torch::nn::EmbeddingOptions(o.source, o.embedding).padding_idx(0)));
    target_embedding =
        register_module("target_embedding", torch::nn::Embedding(o.target, o.embedding));
    encoder = register_module(
        "encoder",
        torch::nn::GRU(torch::nn::GRUOptions(o.embedding, o.hidden).bidirectional(true)));
    bridge = register_module("bridge", torch::nn::Linear(2 * o.hidden, o.hidden));
    attention =
        register_module("attention", AdditiveAttention(2 * o.hidden, o.hidden, o.attention));
    decoder = register_module("decoder", torch::nn::GRUCell(o.embedding + 2 * o.hidden, o.hidden));
    readout =
        register_module("readout", torch::nn::Linear(o.embedding + 3 * o.hidden, 2 * o.hidden));
    generator = register_module("generator", torch::nn::Linear(o.hidden, o.target));
  }

  /// Time first inside, as the old code has it; batch first outside.
  torch::Tensor forward(const torch::Tensor& source, const torch::Tensor& target) {
    const auto padded = source == 0;
    auto [keys, last] = encoder(source_embedding(source.t()));
    keys = keys.transpose(0, 1);
    auto state = torch::tanh(bridge(torch::cat({last[0], last[1]}, 1)));
    const auto projected = attention->U(keys);
    const auto words = target_embedding(target).unbind(1);
    std::vector<torch::Tensor> logits;
    for (const auto& word : words) {
      const auto context = attention(state, projected, keys, padded);
      state = decoder(torch::cat({word, context}, -1), state);
      const auto features = readout(torch::cat({state, context, word}, -1));
      // maxout over pairs
      const auto pooled = std::get<0>(features.view({-1, size, 2}).max(-1));
      logits.push_back(generator(pooled));
    }
    return torch::stack(logits, 1);
  }

  int64_t size;
  torch::nn::Embedding source_embedding{nullptr}, target_embedding{nullptr};
  torch::nn::GRU encoder{nullptr};
  torch::nn::Linear bridge{nullptr}, readout{nullptr}, generator{nullptr};
  AdditiveAttention attention{nullptr};
  torch::nn::GRUCell decoder{nullptr};
};
TORCH_MODULE(Seq2Seq);

}  // namespace models::seq2seq
