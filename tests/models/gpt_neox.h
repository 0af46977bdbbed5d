#pragma once

#include <torch/torch.h>

#include <cmath>
#include <tuple>

// GPT-NeoX as ported from Python: query, key and value of a head lie side by side in one
// projection, rotary positions turn only the first part of a head, attention and MLP run beside
// each other on the same residual, masks and frequencies are buffers, the head is untied.
namespace models {

struct GptNeoXConfig {
  int64_t vocab_size = 53, max_position_embeddings = 24, hidden_size = 40, num_attention_heads = 4,
          intermediate_size = 100, num_hidden_layers = 2;
  double rotary_pct = 0.4, layer_norm_eps = 1e-5;
};

struct GptNeoXAttentionImpl : torch::nn::Module {
  explicit GptNeoXAttentionImpl(const GptNeoXConfig& config)
      : num_heads(config.num_attention_heads),
        head_size(config.hidden_size / num_heads),
        rotary_ndims(static_cast<int64_t>(head_size * config.rotary_pct)),
        norm_factor(std::sqrt(static_cast<double>(head_size))) {
    const auto positions = config.max_position_embeddings;
    bias = register_buffer("bias", torch::ones({positions, positions}, torch::kBool)
                                       .tril()
                                       .view({1, 1, positions, positions}));
    masked_bias = register_buffer("masked_bias", torch::tensor(-1e9));
    inv_freq = register_buffer(
        "inv_freq",
        1.0 / torch::pow(10000, torch::arange(0, rotary_ndims, 2) / double(rotary_ndims)));
    query_key_value = register_module(
        "query_key_value", torch::nn::Linear(config.hidden_size, 3 * config.hidden_size));
    dense = register_module("dense", torch::nn::Linear(config.hidden_size, config.hidden_size));
  }

  static torch::Tensor rotate_half(const torch::Tensor& x) {
    const auto x1 = x.index(
        {torch::indexing::Ellipsis, torch::indexing::Slice(torch::indexing::None, x.size(-1) / 2)});
    const auto x2 = x.index(
        {torch::indexing::Ellipsis, torch::indexing::Slice(x.size(-1) / 2, torch::indexing::None)});
    return torch::cat({-x2, x1}, -1);
  }

  std::tuple<torch::Tensor, torch::Tensor> apply_rotary_pos_emb(const torch::Tensor& q,
                                                                const torch::Tensor& k) const {
    const auto t = torch::arange(q.size(-2), inv_freq.options());
    const auto freqs = torch::outer(t, inv_freq);
    const auto emb = torch::cat({freqs, freqs}, -1);
    const auto cos = emb.cos().unsqueeze(0).unsqueeze(0), sin = emb.sin().unsqueeze(0).unsqueeze(0);
    return {(q * cos) + (rotate_half(q) * sin), (k * cos) + (rotate_half(k) * sin)};
  }

  torch::Tensor forward(const torch::Tensor& hidden_states) {
    // [batch, seq_len, 3 * hidden] -> [batch, seq_len, num_heads, 3 * head_size]
    auto qkv = query_key_value(hidden_states);
    auto new_shape = qkv.sizes().vec();
    new_shape.pop_back();
    new_shape.insert(new_shape.end(), {num_heads, 3 * head_size});
    qkv = qkv.view(new_shape);
    using torch::indexing::Ellipsis, torch::indexing::None, torch::indexing::Slice;
    auto query = qkv.index({Ellipsis, Slice(None, head_size)}).permute({0, 2, 1, 3});
    auto key = qkv.index({Ellipsis, Slice(head_size, 2 * head_size)}).permute({0, 2, 1, 3});
    const auto value = qkv.index({Ellipsis, Slice(2 * head_size, None)}).permute({0, 2, 1, 3});

    const auto query_rot = query.slice(-1, 0, rotary_ndims),
               query_pass = query.slice(-1, rotary_ndims);
    const auto key_rot = key.slice(-1, 0, rotary_ndims), key_pass = key.slice(-1, rotary_ndims);
    const auto [query_turned, key_turned] = apply_rotary_pos_emb(query_rot, key_rot);
    query = torch::cat({query_turned, query_pass}, -1);
    key = torch::cat({key_turned, key_pass}, -1);
    return dense(merge_heads(attend(query, key, value)));
  }

  torch::Tensor attend(torch::Tensor query, torch::Tensor key, const torch::Tensor& value) const {
    const auto batch = query.size(0), heads = query.size(1), length = query.size(2);
    const auto causal_mask =
        bias.index({torch::indexing::Slice(), torch::indexing::Slice(),
                    torch::indexing::Slice(0, length), torch::indexing::Slice(0, length)});
    query = query.reshape({batch * heads, length, head_size});
    key = key.reshape({batch * heads, length, head_size});
    auto scores = torch::bmm(query, key.transpose(1, 2)) / norm_factor;
    scores = scores.view({batch, heads, length, length});
    scores = torch::where(causal_mask, scores, masked_bias.to(scores.scalar_type()));
    const auto weights = torch::nn::functional::softmax(scores, -1).to(value.scalar_type());
    return torch::matmul(weights, value);
  }

  torch::Tensor merge_heads(torch::Tensor tensor) const {
    tensor = tensor.permute({0, 2, 1, 3}).contiguous();
    return tensor.view({tensor.size(0), tensor.size(1), num_heads * head_size});
  }

  int64_t num_heads, head_size, rotary_ndims;
  double norm_factor;
  torch::Tensor bias, masked_bias, inv_freq;
  torch::nn::Linear query_key_value{nullptr}, dense{nullptr};
};
TORCH_MODULE(GptNeoXAttention);

struct GptNeoXMlpImpl : torch::nn::Module {
  explicit GptNeoXMlpImpl(const GptNeoXConfig& config) {
    dense_h_to_4h = register_module(
        "dense_h_to_4h", torch::nn::Linear(config.hidden_size, config.intermediate_size));
    dense_4h_to_h = register_module(
        "dense_4h_to_h", torch::nn::Linear(config.intermediate_size, config.hidden_size));
    act = register_module("act", torch::nn::GELU());
  }
  torch::Tensor forward(const torch::Tensor& x) { return dense_4h_to_h(act(dense_h_to_4h(x))); }

  torch::nn::Linear dense_h_to_4h{nullptr}, dense_4h_to_h{nullptr};
  torch::nn::GELU act{nullptr};
};
TORCH_MODULE(GptNeoXMlp);

struct GptNeoXLayerImpl : torch::nn::Module {
  explicit GptNeoXLayerImpl(const GptNeoXConfig& config) {
    const auto norm = torch::nn::LayerNormOptions({config.hidden_size}).eps(config.layer_norm_eps);
    input_layernorm = register_module("input_layernorm", torch::nn::LayerNorm(norm));
    post_attention_layernorm =
        register_module("post_attention_layernorm", torch::nn::LayerNorm(norm));
    attention = register_module("attention", GptNeoXAttention(config));
    mlp = register_module("mlp", GptNeoXMlp(config));
  }

  // pseudocode: x = x + attn(ln1(x)) + mlp(ln2(x))
  torch::Tensor forward(const torch::Tensor& hidden_states) {
    const auto attn_output = attention(input_layernorm(hidden_states));
    const auto mlp_output = mlp(post_attention_layernorm(hidden_states));
    return mlp_output + attn_output + hidden_states;
  }

  torch::nn::LayerNorm input_layernorm{nullptr}, post_attention_layernorm{nullptr};
  GptNeoXAttention attention{nullptr};
  GptNeoXMlp mlp{nullptr};
};
TORCH_MODULE(GptNeoXLayer);

struct GptNeoXImpl : torch::nn::Module {
  explicit GptNeoXImpl(const GptNeoXConfig& config = {}) {
    embed_in =
        register_module("embed_in", torch::nn::Embedding(config.vocab_size, config.hidden_size));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < config.num_hidden_layers; ++i) layers->push_back(GptNeoXLayer(config));
    final_layer_norm = register_module(
        "final_layer_norm",
        torch::nn::LayerNorm(
            torch::nn::LayerNormOptions({config.hidden_size}).eps(config.layer_norm_eps)));
    embed_out = register_module(
        "embed_out",
        torch::nn::Linear(
            torch::nn::LinearOptions(config.hidden_size, config.vocab_size).bias(false)));
  }

  torch::Tensor forward(const torch::Tensor& input_ids) {
    auto hidden_states = embed_in(input_ids);
    for (size_t i = 0; i < layers->size(); ++i) {
      hidden_states = layers[i]->as<GptNeoXLayer>()->forward(hidden_states);
    }
    return embed_out(final_layer_norm(hidden_states));
  }

  torch::nn::Embedding embed_in{nullptr};
  torch::nn::ModuleList layers{nullptr};
  torch::nn::LayerNorm final_layer_norm{nullptr};
  torch::nn::Linear embed_out{nullptr};
};
TORCH_MODULE(GptNeoX);

}  // namespace models
