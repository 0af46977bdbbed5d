#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "config_json.h"
#include "generate.h"

/// GPT-2 (Radford et al. 2019) as one would write it for one device. Module and parameter names are
/// those of Hugging Face's GPT2LMHeadModel; linear layers are torch::nn::Linear, so their weights
/// are [out, in], the transpose of Hugging Face's Conv1D: load_pretrained and save_pretrained
/// transpose them.
namespace gpt2 {
namespace nn = torch::nn;
using generation::GenerateOptions;
using generation::KeyValueCache;

/// Names and defaults are those of Hugging Face's config.json.
struct GPT2Config {
  std::int64_t vocab_size = 50257;
  std::int64_t n_positions = 1024;
  std::int64_t n_embd = 768;
  std::int64_t n_layer = 12;
  std::int64_t n_head = 12;
  double layer_norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  double embd_pdrop = 0.1;
  double attn_pdrop = 0.1;
  double resid_pdrop = 0.1;

  /// A config.json that Hugging Face's GPT2LMHeadModel reads.
  nlohmann::json to_json() const {
    return {{"model_type", "gpt2"},
            {"architectures", nlohmann::json::array({"GPT2LMHeadModel"})},
            {"activation_function", "gelu_new"},
            {"tie_word_embeddings", true},
            {"bos_token_id", vocab_size - 1},
            {"eos_token_id", vocab_size - 1},
            {"vocab_size", vocab_size},
            {"n_positions", n_positions},
            {"n_embd", n_embd},
            {"n_layer", n_layer},
            {"n_head", n_head},
            {"layer_norm_epsilon", layer_norm_epsilon},
            {"initializer_range", initializer_range},
            {"embd_pdrop", embd_pdrop},
            {"attn_pdrop", attn_pdrop},
            {"resid_pdrop", resid_pdrop}};
  }

  /// Reads the keys above; others (config.json has many) are ignored.
  /// Throws std::runtime_error if a key is missing, or asks for what this model has not.
  static GPT2Config from_json(const nlohmann::json& json) {
    return config_json::read_config(json, "gpt2", [&] {
      GPT2Config config;
      json.at("vocab_size").get_to(config.vocab_size);
      json.at("n_positions").get_to(config.n_positions);
      json.at("n_embd").get_to(config.n_embd);
      json.at("n_layer").get_to(config.n_layer);
      json.at("n_head").get_to(config.n_head);
      json.at("layer_norm_epsilon").get_to(config.layer_norm_epsilon);
      json.at("initializer_range").get_to(config.initializer_range);
      json.at("embd_pdrop").get_to(config.embd_pdrop);
      json.at("attn_pdrop").get_to(config.attn_pdrop);
      json.at("resid_pdrop").get_to(config.resid_pdrop);
      json.at("activation_function");
      config_json::expect(json, "activation_function", "gelu_new");
      config_json::expect(json, "n_inner", 4 * config.n_embd);
      config_json::expect(json, "tie_word_embeddings", true);
      config_json::expect(json, "add_cross_attention", false);
      config_json::expect(json, "scale_attn_weights", true);
      config_json::expect(json, "scale_attn_by_inverse_layer_idx", false);
      return config;
    });
  }
};

inline nn::LayerNorm layer_norm(const GPT2Config& config) {
  return nn::LayerNorm(nn::LayerNormOptions({config.n_embd}).eps(config.layer_norm_epsilon));
}

class GPT2AttentionImpl : public nn::Module {
 public:
  explicit GPT2AttentionImpl(const GPT2Config& config)
      : c_attn(register_module("c_attn", nn::Linear(config.n_embd, 3 * config.n_embd))),
        c_proj(register_module("c_proj", nn::Linear(config.n_embd, config.n_embd))),
        resid_dropout(register_module("resid_dropout", nn::Dropout(config.resid_pdrop))),
        n_head_(config.n_head),
        attn_pdrop_(config.attn_pdrop) {
    if (config.n_embd % config.n_head != 0) {
      throw std::runtime_error("n_embd " + std::to_string(config.n_embd) +
                               " is not a multiple of n_head " + std::to_string(config.n_head));
    }
  }

  /// [batch, time, n_embd] to the same. With a cache `x` is of the tokens behind those in it, and
  /// `layer` says which layer's this is. A `mask` says who attends to whom (`generation::attend`).
  torch::Tensor forward(const torch::Tensor& x, KeyValueCache* cache = nullptr,
                        std::size_t layer = 0, const std::optional<torch::Tensor>& mask = {}) {
    const std::int64_t batch = x.size(0), time = x.size(1), hidden = x.size(2);
    const auto heads = [&](const torch::Tensor& t) {
      return t.view({batch, time, n_head_, hidden / n_head_}).transpose(1, 2);
    };
    const std::vector<torch::Tensor> qkv = c_attn->forward(x).split(hidden, /*dim=*/2);
    std::pair<torch::Tensor, torch::Tensor> kv{heads(qkv[1]), heads(qkv[2])};
    if (cache != nullptr) kv = cache->extend(layer, kv.first, kv.second);
    torch::Tensor y = generation::attend(heads(qkv[0]), kv.first, kv.second,
                                         is_training() ? attn_pdrop_ : 0.0, false, mask);
    y = y.transpose(1, 2).reshape({batch, time, hidden});
    return resid_dropout->forward(c_proj->forward(y));
  }

  nn::Linear c_attn, c_proj;
  nn::Dropout resid_dropout;

 private:
  std::int64_t n_head_;
  double attn_pdrop_;
};
TORCH_MODULE(GPT2Attention);

class GPT2MLPImpl : public nn::Module {
 public:
  explicit GPT2MLPImpl(const GPT2Config& config)
      : c_fc(register_module("c_fc", nn::Linear(config.n_embd, 4 * config.n_embd))),
        c_proj(register_module("c_proj", nn::Linear(4 * config.n_embd, config.n_embd))),
        dropout(register_module("dropout", nn::Dropout(config.resid_pdrop))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    return dropout->forward(c_proj->forward(at::gelu(c_fc->forward(x), "tanh")));
  }

  nn::Linear c_fc, c_proj;
  nn::Dropout dropout;
};
TORCH_MODULE(GPT2MLP);

class GPT2BlockImpl : public nn::Module {
 public:
  explicit GPT2BlockImpl(const GPT2Config& config)
      : ln_1(register_module("ln_1", layer_norm(config))),
        attn(register_module("attn", GPT2Attention(config))),
        ln_2(register_module("ln_2", layer_norm(config))),
        mlp(register_module("mlp", GPT2MLP(config))) {}

  torch::Tensor forward(torch::Tensor x, KeyValueCache* cache = nullptr, std::size_t layer = 0,
                        const std::optional<torch::Tensor>& mask = {}) {
    x = x + attn->forward(ln_1->forward(x), cache, layer, mask);
    return x + mlp->forward(ln_2->forward(x));
  }

  nn::LayerNorm ln_1;
  GPT2Attention attn;
  nn::LayerNorm ln_2;
  GPT2MLP mlp;
};
TORCH_MODULE(GPT2Block);

class GPT2ModelImpl : public nn::Module {
 public:
  explicit GPT2ModelImpl(const GPT2Config& config)
      : wte(register_module("wte", nn::Embedding(config.vocab_size, config.n_embd))),
        wpe(register_module("wpe", nn::Embedding(config.n_positions, config.n_embd))),
        drop(register_module("drop", nn::Dropout(config.embd_pdrop))),
        h(register_module("h", nn::ModuleList())),
        ln_f(register_module("ln_f", layer_norm(config))) {
    for (std::int64_t i = 0; i < config.n_layer; ++i) h->push_back(GPT2Block(config));
  }

  /// [batch, time] to [batch, time, n_embd]; `ids` are those behind the tokens in the cache. The
  /// attention mask, [batch, time], is 0 for tokens that nobody attends to; it takes no cache.
  torch::Tensor forward(const torch::Tensor& ids, KeyValueCache* cache = nullptr,
                        const std::optional<torch::Tensor>& attention_mask = {}) {
    std::optional<torch::Tensor> mask;
    if (attention_mask) mask = generation::causal_mask(*attention_mask);
    const std::int64_t past = cache == nullptr ? 0 : cache->length();
    const torch::Tensor positions = torch::arange(past, past + ids.size(1), ids.options());
    torch::Tensor x = drop->forward(wte->forward(ids) + wpe->forward(positions));
    std::size_t layer = 0;
    for (const auto& block : *h) x = block->as<GPT2Block>()->forward(x, cache, layer++, mask);
    return ln_f->forward(x);
  }

  nn::Embedding wte, wpe;
  nn::Dropout drop;
  nn::ModuleList h;
  nn::LayerNorm ln_f;
};
TORCH_MODULE(GPT2Model);

class GPT2LMHeadModelImpl : public nn::Module {
 public:
  explicit GPT2LMHeadModelImpl(const GPT2Config& config)
      : transformer(register_module("transformer", GPT2Model(config))),
        lm_head(register_module(
            "lm_head",
            nn::Linear(nn::LinearOptions(config.n_embd, config.vocab_size).bias(false)))),
        n_positions_(config.n_positions) {
    lm_head->weight = transformer->wte->weight;
    initialize_weights(config);
  }

  /// Token ids [batch, time], time at most n_positions, to logits [batch, time, vocab_size].
  torch::Tensor forward(const torch::Tensor& ids, KeyValueCache* cache = nullptr,
                        const std::optional<torch::Tensor>& attention_mask = {}) {
    return lm_head->forward(transformer->forward(ids, cache, attention_mask));
  }

  /// Appends `count` tokens to each row of `ids` [batch, time]. A text longer than n_positions is
  /// continued from its last n_positions tokens, whose positions change with every one: from there
  /// on nothing is kept in the cache.
  torch::Tensor generate(const torch::Tensor& ids, std::int64_t count,
                         const GenerateOptions& how = {}) {
    const generation::Evaluating evaluating(*this);
    KeyValueCache cache;
    return generation::generate(ids, count, how, [&](const torch::Tensor& all) {
      const std::int64_t first = std::max<std::int64_t>(0, all.size(1) - n_positions_);
      if (first > 0) cache = {};
      const torch::Tensor fresh = all.slice(/*dim=*/1, first + cache.length());
      return forward(fresh, &cache).select(/*dim=*/1, -1);
    });
  }

  GPT2Model transformer;
  nn::Linear lm_head;  ///< its weight is wte's

 private:
  void initialize_weights(const GPT2Config& config) {
    torch::NoGradGuard no_grad;
    for (const auto& module : modules(/*include_self=*/false)) {
      if (auto* linear = module->as<nn::Linear>()) {
        linear->weight.normal_(0.0, config.initializer_range);
        if (linear->bias.defined()) linear->bias.zero_();
      } else if (auto* embedding = module->as<nn::Embedding>()) {
        embedding->weight.normal_(0.0, config.initializer_range);
      }
    }
    // The projections that are added to the residual stream, two a layer: their sum keeps its size.
    const double scale = config.initializer_range / std::sqrt(2.0 * config.n_layer);
    for (const auto& block : *transformer->h) {
      block->as<GPT2Block>()->attn->c_proj->weight.normal_(0.0, scale);
      block->as<GPT2Block>()->mlp->c_proj->weight.normal_(0.0, scale);
    }
  }

  std::int64_t n_positions_;
};
TORCH_MODULE(GPT2LMHeadModel);

}  // namespace gpt2
