#pragma once

#include <torch/torch.h>

#include <cmath>
#include <limits>

// BART on torch::nn::MultiheadAttention, which wants (time, batch, feature): post-norm encoder and
// decoder, learned positions that begin at 2, embeddings scaled by the root of the width, boolean
// padding masks, a head tied to the embedding whose bias is a buffer.
namespace models {

struct BartConfig {
  int64_t vocab_size = 47, d_model = 36, heads = 4, ffn_dim = 70, layers = 2,
          max_position_embeddings = 16, pad_token_id = 1, decoder_start_token_id = 2;
};

struct BartLearnedPositionalEmbeddingImpl : torch::nn::EmbeddingImpl {
  static constexpr int64_t offset = 2;
  BartLearnedPositionalEmbeddingImpl(int64_t num_embeddings, int64_t embedding_dim)
      : torch::nn::EmbeddingImpl(num_embeddings + offset, embedding_dim) {}
  torch::Tensor forward(const torch::Tensor& input_ids) {
    const auto positions = torch::arange(input_ids.size(1), input_ids.options());
    return torch::nn::EmbeddingImpl::forward(positions + offset);
  }
};
TORCH_MODULE(BartLearnedPositionalEmbedding);

struct BartLayerImpl : torch::nn::Module {
  BartLayerImpl(const BartConfig& c, bool decoder) {
    const auto attention = torch::nn::MultiheadAttentionOptions(c.d_model, c.heads);
    const auto norm = torch::nn::LayerNormOptions({c.d_model});
    self_attn = register_module("self_attn", torch::nn::MultiheadAttention(attention));
    self_attn_layer_norm = register_module("self_attn_layer_norm", torch::nn::LayerNorm(norm));
    if (decoder) {
      encoder_attn = register_module("encoder_attn", torch::nn::MultiheadAttention(attention));
      encoder_attn_layer_norm =
          register_module("encoder_attn_layer_norm", torch::nn::LayerNorm(norm));
    }
    fc1 = register_module("fc1", torch::nn::Linear(c.d_model, c.ffn_dim));
    fc2 = register_module("fc2", torch::nn::Linear(c.ffn_dim, c.d_model));
    final_layer_norm = register_module("final_layer_norm", torch::nn::LayerNorm(norm));
  }

  torch::Tensor forward(torch::Tensor x, const torch::Tensor& padding, const torch::Tensor& causal,
                        const torch::Tensor& memory = {},
                        const torch::Tensor& memory_padding = {}) {
    auto residual = x;
    x = std::get<0>(self_attn(x, x, x, padding, /*need_weights=*/false, causal));
    x = self_attn_layer_norm(residual + x);
    if (memory.defined()) {
      residual = x;
      x = std::get<0>(encoder_attn(x, memory, memory, memory_padding));
      x = encoder_attn_layer_norm(residual + x);
    }
    residual = x;
    x = fc2(torch::nn::functional::gelu(fc1(x)));
    return final_layer_norm(residual + x);
  }

  torch::nn::MultiheadAttention self_attn{nullptr}, encoder_attn{nullptr};
  torch::nn::LayerNorm self_attn_layer_norm{nullptr}, encoder_attn_layer_norm{nullptr},
      final_layer_norm{nullptr};
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(BartLayer);

struct BartImpl : torch::nn::Module {
  explicit BartImpl(const BartConfig& config = {})
      : c(config), embed_scale(std::sqrt(static_cast<double>(c.d_model))) {
    shared = register_module(
        "shared",
        torch::nn::Embedding(
            torch::nn::EmbeddingOptions(c.vocab_size, c.d_model).padding_idx(c.pad_token_id)));
    torch::nn::init::normal_(shared->weight, 0.0, 0.2);
    encoder_positions = register_module(
        "encoder_positions", BartLearnedPositionalEmbedding(c.max_position_embeddings, c.d_model));
    decoder_positions = register_module(
        "decoder_positions", BartLearnedPositionalEmbedding(c.max_position_embeddings, c.d_model));
    encoder_norm = register_module("encoder_norm",
                                   torch::nn::LayerNorm(torch::nn::LayerNormOptions({c.d_model})));
    decoder_norm = register_module("decoder_norm",
                                   torch::nn::LayerNorm(torch::nn::LayerNormOptions({c.d_model})));
    encoder = register_module("encoder", torch::nn::ModuleList());
    decoder = register_module("decoder", torch::nn::ModuleList());
    for (int64_t i = 0; i < c.layers; ++i) {
      encoder->push_back(BartLayer(c, false));
      decoder->push_back(BartLayer(c, true));
    }
    lm_head = register_module(
        "lm_head",
        torch::nn::Linear(torch::nn::LinearOptions(c.d_model, c.vocab_size).bias(false)));
    lm_head->weight = shared->weight;
    final_logits_bias =
        register_buffer("final_logits_bias", torch::linspace(-1, 1, c.vocab_size).unsqueeze(0));
  }

  torch::Tensor shift_tokens_right(const torch::Tensor& ids) const {
    auto shifted = ids.new_full(ids.sizes(), c.decoder_start_token_id);
    shifted.slice(1, 1) = ids.slice(1, 0, ids.size(1) - 1);
    return shifted;
  }

  torch::Tensor encode(const torch::Tensor& ids, const torch::Tensor& padding) {
    auto x = shared(ids) * embed_scale + encoder_positions(ids);
    x = encoder_norm(x).transpose(0, 1);
    for (const auto& layer : *encoder) x = layer->as<BartLayer>()->forward(x, padding, {});
    return x;
  }

  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& labels) {
    const auto padding = ids.eq(c.pad_token_id);
    const auto memory = encode(ids, padding);
    const auto decoder_ids = shift_tokens_right(labels);
    const auto length = decoder_ids.size(1);
    const auto causal =
        torch::full({length, length}, -std::numeric_limits<float>::infinity()).triu(1);
    auto x = shared(decoder_ids) * embed_scale;
    x = decoder_norm(x + decoder_positions(decoder_ids)).transpose(0, 1);
    for (const auto& layer : *decoder) {
      x = layer->as<BartLayer>()->forward(x, {}, causal, memory, padding);
    }
    return lm_head(x.transpose(0, 1)) + final_logits_bias;
  }

  BartConfig c;
  double embed_scale;
  torch::nn::Embedding shared{nullptr};
  BartLearnedPositionalEmbedding encoder_positions{nullptr}, decoder_positions{nullptr};
  torch::nn::LayerNorm encoder_norm{nullptr}, decoder_norm{nullptr};
  torch::nn::ModuleList encoder{nullptr}, decoder{nullptr};
  torch::nn::Linear lm_head{nullptr};
  torch::Tensor final_logits_bias;
};
TORCH_MODULE(Bart);

}  // namespace models
