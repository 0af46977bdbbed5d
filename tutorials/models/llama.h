#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>

#include "config_json.h"
#include "generate.h"
#include "rotary.h"

/// Llama (Touvron et al. 2023) as one would write it for one device: root-mean-square norms, rotary
/// positions, grouped queries, a gated MLP. Module and parameter names are those of Hugging Face's
/// LlamaForCausalLM.
namespace llama {
namespace nn = torch::nn;
using generation::GenerateOptions;
using generation::KeyValueCache;
using rotary::Rotation;

/// Names and defaults are those of Hugging Face's config.json.
struct LlamaConfig {
  std::int64_t vocab_size = 32000;
  std::int64_t hidden_size = 4096;
  std::int64_t intermediate_size = 11008;
  std::int64_t num_hidden_layers = 32;
  std::int64_t num_attention_heads = 32;
  std::int64_t num_key_value_heads = 32;
  std::int64_t head_dim = 128;
  std::int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  rotary::Rope rope;  ///< "rope_theta" and "rope_scaling"
  bool attention_bias = false;
  bool mlp_bias = false;
  bool tie_word_embeddings = false;

  nlohmann::json to_json() const {
    return {{"model_type", "llama"},
            {"architectures", nlohmann::json::array({"LlamaForCausalLM"})},
            {"hidden_act", "silu"},
            {"vocab_size", vocab_size},
            {"hidden_size", hidden_size},
            {"intermediate_size", intermediate_size},
            {"num_hidden_layers", num_hidden_layers},
            {"num_attention_heads", num_attention_heads},
            {"num_key_value_heads", num_key_value_heads},
            {"head_dim", head_dim},
            {"max_position_embeddings", max_position_embeddings},
            {"rms_norm_eps", rms_norm_eps},
            {"rope_theta", rope.theta},
            {"rope_scaling", rope.scaling_json()},
            {"attention_bias", attention_bias},
            {"mlp_bias", mlp_bias},
            {"tie_word_embeddings", tie_word_embeddings}};
  }

  /// Reads the keys above and the newer "rope_parameters"; others are ignored.
  /// Throws std::runtime_error if a key is missing, or asks for what this model has not.
  static LlamaConfig from_json(const nlohmann::json& json) {
    using config_json::value_or;
    return config_json::read_config(json, "llama", [&] {
      LlamaConfig config;
      json.at("vocab_size").get_to(config.vocab_size);
      json.at("hidden_size").get_to(config.hidden_size);
      json.at("intermediate_size").get_to(config.intermediate_size);
      json.at("num_hidden_layers").get_to(config.num_hidden_layers);
      json.at("num_attention_heads").get_to(config.num_attention_heads);
      json.at("max_position_embeddings").get_to(config.max_position_embeddings);
      json.at("rms_norm_eps").get_to(config.rms_norm_eps);
      config.num_key_value_heads =
          value_or(json, "num_key_value_heads", config.num_attention_heads);
      config.head_dim = value_or(json, "head_dim", config.hidden_size / config.num_attention_heads);
      config.attention_bias = value_or(json, "attention_bias", false);
      config.mlp_bias = value_or(json, "mlp_bias", false);
      config.tie_word_embeddings = value_or(json, "tie_word_embeddings", false);
      config.rope = rotary::Rope::from_json(json);
      config_json::expect(json, "hidden_act", "silu");
      return config;
    });
  }
};

class LlamaRMSNormImpl : public nn::Module {
 public:
  LlamaRMSNormImpl(std::int64_t hidden, double eps)
      : weight(register_parameter("weight", torch::ones({hidden}))), eps_(eps) {}

  /// In float where `x` is of half precision.
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor wide = x.element_size() < 4 ? x.to(torch::kFloat) : x;
    const torch::Tensor root = torch::rsqrt(wide.pow(2).mean(-1, /*keepdim=*/true) + eps_);
    return weight * (wide * root).to(x.scalar_type());
  }

  torch::Tensor weight;

 private:
  double eps_;
};
TORCH_MODULE(LlamaRMSNorm);

class LlamaAttentionImpl : public nn::Module {
 public:
  explicit LlamaAttentionImpl(const LlamaConfig& c)
      : q_proj(register_module("q_proj", projection(c, c.num_attention_heads))),
        k_proj(register_module("k_proj", projection(c, c.num_key_value_heads))),
        v_proj(register_module("v_proj", projection(c, c.num_key_value_heads))),
        o_proj(register_module(
            "o_proj",
            nn::Linear(nn::LinearOptions(c.num_attention_heads * c.head_dim, c.hidden_size)
                           .bias(c.attention_bias)))),
        heads_(c.num_attention_heads),
        key_value_heads_(c.num_key_value_heads),
        head_dim_(c.head_dim) {
    if (heads_ % key_value_heads_ != 0) {
      throw std::runtime_error("num_attention_heads " + std::to_string(heads_) +
                               " is not a multiple of num_key_value_heads " +
                               std::to_string(key_value_heads_));
    }
  }

  torch::Tensor forward(const torch::Tensor& x, const Rotation& by, KeyValueCache* cache,
                        std::size_t layer) {
    const std::int64_t batch = x.size(0), time = x.size(1);
    const auto heads = [&](const torch::Tensor& t, std::int64_t count) {
      return t.view({batch, time, count, head_dim_}).transpose(1, 2);
    };
    const torch::Tensor queries = rotary::rotate(heads(q_proj->forward(x), heads_), by);
    std::pair<torch::Tensor, torch::Tensor> kv{
        rotary::rotate(heads(k_proj->forward(x), key_value_heads_), by),
        heads(v_proj->forward(x), key_value_heads_)};
    if (cache != nullptr) kv = cache->extend(layer, kv.first, kv.second);
    const torch::Tensor y = generation::attend(queries, kv.first, kv.second, /*dropout=*/0.0,
                                               heads_ != key_value_heads_);
    return o_proj->forward(y.transpose(1, 2).reshape({batch, time, heads_ * head_dim_}));
  }

  nn::Linear q_proj, k_proj, v_proj, o_proj;

 private:
  static nn::Linear projection(const LlamaConfig& c, std::int64_t heads) {
    return nn::Linear(nn::LinearOptions(c.hidden_size, heads * c.head_dim).bias(c.attention_bias));
  }

  std::int64_t heads_, key_value_heads_, head_dim_;
};
TORCH_MODULE(LlamaAttention);

class LlamaMLPImpl : public nn::Module {
 public:
  explicit LlamaMLPImpl(const LlamaConfig& c)
      : gate_proj(register_module("gate_proj", linear(c.hidden_size, c.intermediate_size, c))),
        up_proj(register_module("up_proj", linear(c.hidden_size, c.intermediate_size, c))),
        down_proj(register_module("down_proj", linear(c.intermediate_size, c.hidden_size, c))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    return down_proj->forward(torch::silu(gate_proj->forward(x)) * up_proj->forward(x));
  }

  nn::Linear gate_proj, up_proj, down_proj;

 private:
  static nn::Linear linear(std::int64_t in, std::int64_t out, const LlamaConfig& c) {
    return nn::Linear(nn::LinearOptions(in, out).bias(c.mlp_bias));
  }
};
TORCH_MODULE(LlamaMLP);

class LlamaDecoderLayerImpl : public nn::Module {
 public:
  explicit LlamaDecoderLayerImpl(const LlamaConfig& c)
      : self_attn(register_module("self_attn", LlamaAttention(c))),
        mlp(register_module("mlp", LlamaMLP(c))),
        input_layernorm(
            register_module("input_layernorm", LlamaRMSNorm(c.hidden_size, c.rms_norm_eps))),
        post_attention_layernorm(register_module("post_attention_layernorm",
                                                 LlamaRMSNorm(c.hidden_size, c.rms_norm_eps))) {}

  torch::Tensor forward(torch::Tensor x, const Rotation& by, KeyValueCache* cache,
                        std::size_t layer) {
    x = x + self_attn->forward(input_layernorm->forward(x), by, cache, layer);
    return x + mlp->forward(post_attention_layernorm->forward(x));
  }

  LlamaAttention self_attn;
  LlamaMLP mlp;
  LlamaRMSNorm input_layernorm, post_attention_layernorm;
};
TORCH_MODULE(LlamaDecoderLayer);

class LlamaModelImpl : public nn::Module {
 public:
  explicit LlamaModelImpl(const LlamaConfig& c)
      : embed_tokens(register_module("embed_tokens", nn::Embedding(c.vocab_size, c.hidden_size))),
        layers(register_module("layers", nn::ModuleList())),
        norm(register_module("norm", LlamaRMSNorm(c.hidden_size, c.rms_norm_eps))),
        config_(c) {
    for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) layers->push_back(LlamaDecoderLayer(c));
  }

  /// [batch, time] to [batch, time, hidden_size]; `ids` are those behind the tokens in the cache.
  torch::Tensor forward(const torch::Tensor& ids, KeyValueCache* cache = nullptr) {
    const std::int64_t past = cache == nullptr ? 0 : cache->length();
    torch::Tensor x = embed_tokens->forward(ids);
    const torch::Tensor positions = torch::arange(past, past + ids.size(1), ids.options());
    const Rotation by =
        rotary::rotation(positions, config_.rope, config_.head_dim, x.scalar_type());
    std::size_t layer = 0;
    for (const auto& each : *layers) {
      x = each->as<LlamaDecoderLayer>()->forward(x, by, cache, layer++);
    }
    return norm->forward(x);
  }

  nn::Embedding embed_tokens;
  nn::ModuleList layers;
  LlamaRMSNorm norm;

 private:
  LlamaConfig config_;
};
TORCH_MODULE(LlamaModel);

class LlamaForCausalLMImpl : public nn::Module {
 public:
  explicit LlamaForCausalLMImpl(const LlamaConfig& c)
      : model(register_module("model", LlamaModel(c))),
        lm_head(register_module(
            "lm_head", nn::Linear(nn::LinearOptions(c.hidden_size, c.vocab_size).bias(false)))) {
    if (c.tie_word_embeddings) lm_head->weight = model->embed_tokens->weight;
  }

  /// Token ids [batch, time] to logits [batch, time, vocab_size].
  torch::Tensor forward(const torch::Tensor& ids, KeyValueCache* cache = nullptr) {
    return lm_head->forward(model->forward(ids, cache));
  }

  /// Appends at most `count` tokens to each row of `ids` [batch, time].
  torch::Tensor generate(const torch::Tensor& ids, std::int64_t count,
                         const GenerateOptions& how = {}) {
    const generation::Evaluating evaluating(*this);
    KeyValueCache cache;
    return generation::generate(ids, count, how, [&](const torch::Tensor& all) {
      const torch::Tensor fresh = all.slice(/*dim=*/1, cache.length());
      return forward(fresh, &cache).select(/*dim=*/1, -1);
    });
  }

  LlamaModel model;
  nn::Linear lm_head;
};
TORCH_MODULE(LlamaForCausalLM);

}  // namespace llama
