#pragma once

#include <torch/torch.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "config_json.h"
#include "generate.h"

/// T5 (Raffel et al. 2019), encoder and decoder, as one would write it for one device. Module and
/// parameter names are those of Hugging Face's T5ForConditionalGeneration; 1.0 (relu) and 1.1
/// (gated GeLU).
namespace t5 {
namespace nn = torch::nn;
using generation::GenerateOptions;
using generation::KeyValueCache;

/// Names and defaults are those of Hugging Face's config.json.
struct T5Config {
  std::int64_t vocab_size = 32128;
  std::int64_t d_model = 512;
  std::int64_t d_kv = 64;
  std::int64_t d_ff = 2048;
  std::int64_t num_layers = 6;
  std::int64_t num_decoder_layers = 6;
  std::int64_t num_heads = 8;
  std::int64_t relative_attention_num_buckets = 32;
  std::int64_t relative_attention_max_distance = 128;
  std::int64_t decoder_start_token_id = 0;
  double layer_norm_epsilon = 1e-6;
  double dropout_rate = 0.1;
  bool gated = false;  ///< "feed_forward_proj": "gated-gelu" rather than "relu"
  bool tie_word_embeddings = true;
  bool scale_outputs = true;  ///< by 1 / sqrt(d_model) before the head, as 1.0 does

  nlohmann::json to_json() const {
    return {{"model_type", "t5"},
            {"architectures", nlohmann::json::array({"T5ForConditionalGeneration"})},
            {"is_encoder_decoder", true},
            {"tie_word_embeddings", tie_word_embeddings},
            {"scale_decoder_outputs", scale_outputs},
            {"feed_forward_proj", gated ? "gated-gelu" : "relu"},
            {"vocab_size", vocab_size},
            {"d_model", d_model},
            {"d_kv", d_kv},
            {"d_ff", d_ff},
            {"num_layers", num_layers},
            {"num_decoder_layers", num_decoder_layers},
            {"num_heads", num_heads},
            {"relative_attention_num_buckets", relative_attention_num_buckets},
            {"relative_attention_max_distance", relative_attention_max_distance},
            {"decoder_start_token_id", decoder_start_token_id},
            {"pad_token_id", 0},
            {"eos_token_id", 1},
            {"layer_norm_epsilon", layer_norm_epsilon},
            {"dropout_rate", dropout_rate}};
  }

  /// Reads the keys above; others are ignored.
  /// Throws std::runtime_error if a key is missing, or asks for what this model has not.
  static T5Config from_json(const nlohmann::json& json) {
    using config_json::value_or;
    return config_json::read_config(json, "t5", [&] {
      T5Config config;
      json.at("vocab_size").get_to(config.vocab_size);
      json.at("d_model").get_to(config.d_model);
      json.at("d_kv").get_to(config.d_kv);
      json.at("d_ff").get_to(config.d_ff);
      json.at("num_layers").get_to(config.num_layers);
      json.at("num_heads").get_to(config.num_heads);
      json.at("relative_attention_num_buckets").get_to(config.relative_attention_num_buckets);
      json.at("layer_norm_epsilon").get_to(config.layer_norm_epsilon);
      json.at("dropout_rate").get_to(config.dropout_rate);
      config.num_decoder_layers = value_or(json, "num_decoder_layers", config.num_layers);
      config.relative_attention_max_distance =
          value_or(json, "relative_attention_max_distance", std::int64_t{128});
      config.decoder_start_token_id =
          value_or(json, "decoder_start_token_id", value_or(json, "pad_token_id", std::int64_t{0}));
      const std::string inner = value_or(json, "feed_forward_proj", std::string("relu"));
      config.gated = inner == "gated-gelu";
      if (!config.gated) config_json::expect(json, "feed_forward_proj", "relu");
      // Before it had a key of its own, the scaling went by whether the head was tied.
      config.scale_outputs =
          value_or(json, "scale_decoder_outputs", value_or(json, "tie_word_embeddings", true));
      return config;
    });
  }
};

inline nn::Linear linear(std::int64_t in, std::int64_t out) {
  return nn::Linear(nn::LinearOptions(in, out).bias(false));
}

class T5LayerNormImpl : public nn::Module {
 public:
  explicit T5LayerNormImpl(const T5Config& c)
      : weight(register_parameter("weight", torch::ones({c.d_model}))),
        eps_(c.layer_norm_epsilon) {}

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
TORCH_MODULE(T5LayerNorm);

/// The buckets of distances [queries, keys]: one for each small distance, wider ones for larger,
/// one for all from `max_distance` on. To both sides, or to the past alone.
inline torch::Tensor buckets(torch::Tensor distance, bool both_sides, const T5Config& c) {
  std::int64_t count = c.relative_attention_num_buckets;
  torch::Tensor bucket = torch::zeros_like(distance);
  if (both_sides) {
    count /= 2;
    bucket = (distance > 0).to(torch::kLong) * count;
    distance = distance.abs();
  } else {
    distance = (-distance).clamp_min(0);
  }
  const std::int64_t exact = count / 2;
  const double octaves =
      std::log(static_cast<double>(c.relative_attention_max_distance) / static_cast<double>(exact));
  // Distances below `exact` are not taken from here: 1 keeps them from a logarithm of 0.
  const torch::Tensor far = exact + (torch::log(distance.clamp_min(1).to(torch::kFloat) / exact) /
                                     octaves * (count - exact))
                                        .to(torch::kLong);
  return bucket + torch::where(distance < exact, distance, far.clamp_max(count - 1));
}

class T5AttentionImpl : public nn::Module {
 public:
  T5AttentionImpl(const T5Config& c, bool has_bias, bool both_sides)
      : q(register_module("q", linear(c.d_model, c.num_heads * c.d_kv))),
        k(register_module("k", linear(c.d_model, c.num_heads * c.d_kv))),
        v(register_module("v", linear(c.d_model, c.num_heads * c.d_kv))),
        o(register_module("o", linear(c.num_heads * c.d_kv, c.d_model))),
        dropout(register_module("dropout", nn::Dropout(c.dropout_rate))),
        config_(c),
        both_sides_(both_sides) {
    if (has_bias) {
      relative_attention_bias = register_module(
          "relative_attention_bias", nn::Embedding(c.relative_attention_num_buckets, c.num_heads));
    }
  }

  torch::Tensor heads(const torch::Tensor& x) const {
    return x.view({x.size(0), x.size(1), config_.num_heads, config_.d_kv}).transpose(1, 2);
  }

  std::pair<torch::Tensor, torch::Tensor> keys_and_values(const torch::Tensor& x) {
    return {heads(k->forward(x)), heads(v->forward(x))};
  }

  /// [1, heads, queries, keys]; the queries are those of the last positions.
  torch::Tensor bias(std::int64_t queries, std::int64_t keys, torch::Device device) {
    const auto options = torch::dtype(torch::kLong).device(device);
    const torch::Tensor distance = torch::arange(keys, options).unsqueeze(0) -
                                   torch::arange(keys - queries, keys, options).unsqueeze(1);
    const torch::Tensor values =
        relative_attention_bias->forward(buckets(distance, both_sides_, config_));
    return values.permute({2, 0, 1}).unsqueeze(0);
  }

  /// From `x` to keys and values. `added` goes to the scores before their softmax: what positions
  /// and masks say.
  torch::Tensor forward(const torch::Tensor& x, const std::pair<torch::Tensor, torch::Tensor>& to,
                        const torch::Tensor& added) {
    const torch::Tensor scores =
        torch::matmul(heads(q->forward(x)), to.first.transpose(2, 3)) + added;
    const torch::Tensor weights = dropout->forward(torch::softmax(scores, -1));
    const torch::Tensor y = torch::matmul(weights, to.second).transpose(1, 2);
    return o->forward(y.reshape({x.size(0), x.size(1), config_.num_heads * config_.d_kv}));
  }

  nn::Linear q, k, v, o;
  nn::Dropout dropout;
  nn::Embedding relative_attention_bias{nullptr};

 private:
  T5Config config_;
  bool both_sides_;
};
TORCH_MODULE(T5Attention);

/// Attention behind its norm. Hugging Face's names tell whose keys it reads.
class T5LayerAttentionImpl : public nn::Module {
 public:
  T5LayerAttentionImpl(const T5Config& c, const std::string& name, bool has_bias, bool both_sides)
      : attention(register_module(name, T5Attention(c, has_bias, both_sides))),
        layer_norm(register_module("layer_norm", T5LayerNorm(c))),
        dropout(register_module("dropout", nn::Dropout(c.dropout_rate))) {}

  T5Attention attention;
  T5LayerNorm layer_norm;
  nn::Dropout dropout;
};
TORCH_MODULE(T5LayerAttention);

class T5DenseImpl : public nn::Module {
 public:
  explicit T5DenseImpl(const T5Config& c)
      : wo(register_module("wo", linear(c.d_ff, c.d_model))),
        dropout(register_module("dropout", nn::Dropout(c.dropout_rate))) {
    if (c.gated) {
      wi_0 = register_module("wi_0", linear(c.d_model, c.d_ff));
      wi_1 = register_module("wi_1", linear(c.d_model, c.d_ff));
    } else {
      wi = register_module("wi", linear(c.d_model, c.d_ff));
    }
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor inner =
        wi ? torch::relu(wi->forward(x)) : at::gelu(wi_0->forward(x), "tanh") * wi_1->forward(x);
    return wo->forward(dropout->forward(inner));
  }

  nn::Linear wi{nullptr}, wi_0{nullptr}, wi_1{nullptr}, wo;
  nn::Dropout dropout;
};
TORCH_MODULE(T5Dense);

class T5LayerFFImpl : public nn::Module {
 public:
  explicit T5LayerFFImpl(const T5Config& c)
      : dense(register_module("DenseReluDense", T5Dense(c))),
        layer_norm(register_module("layer_norm", T5LayerNorm(c))),
        dropout(register_module("dropout", nn::Dropout(c.dropout_rate))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    return x + dropout->forward(dense->forward(layer_norm->forward(x)));
  }

  T5Dense dense;
  T5LayerNorm layer_norm;
  nn::Dropout dropout;
};
TORCH_MODULE(T5LayerFF);

/// What all blocks of a stack share: what is added to scores, and the encoder's output.
struct T5Context {
  torch::Tensor bias = {};         ///< positions and masks of the stack's own tokens
  torch::Tensor memory = {};       ///< the encoder's output; undefined in the encoder
  torch::Tensor memory_bias = {};  ///< its mask
  KeyValueCache* own = nullptr;
  KeyValueCache* of_memory = nullptr;
};

class T5BlockImpl : public nn::Module {
 public:
  T5BlockImpl(const T5Config& c, bool first, bool decoder)
      : layer(register_module("layer", nn::ModuleList())),
        self(T5LayerAttention(c, "SelfAttention", first, !decoder)),
        feed_forward(T5LayerFF(c)) {
    layer->push_back(self);
    if (decoder) {
      cross = T5LayerAttention(c, "EncDecAttention", /*has_bias=*/false, /*both_sides=*/true);
      layer->push_back(cross);
    }
    layer->push_back(feed_forward);
  }

  torch::Tensor forward(torch::Tensor x, const T5Context& context, std::size_t number) {
    const torch::Tensor normed = self->layer_norm->forward(x);
    auto own = self->attention->keys_and_values(normed);
    if (context.own != nullptr) own = context.own->extend(number, own.first, own.second);
    x = x + self->dropout->forward(self->attention->forward(normed, own, context.bias));
    if (cross) {
      const auto memory = of_memory(context, number);
      x = x + cross->dropout->forward(cross->attention->forward(cross->layer_norm->forward(x),
                                                                memory, context.memory_bias));
    }
    return feed_forward->forward(x);
  }

  nn::ModuleList layer;
  T5LayerAttention self, cross{nullptr};
  T5LayerFF feed_forward;

 private:
  /// Keys and values of the encoder's output do not change: a cache has them once.
  std::pair<torch::Tensor, torch::Tensor> of_memory(const T5Context& context, std::size_t number) {
    KeyValueCache* cache = context.of_memory;
    if (cache != nullptr && number < cache->layers.size()) return cache->layers[number];
    const auto fresh = cross->attention->keys_and_values(context.memory);
    return cache == nullptr ? fresh : cache->extend(number, fresh.first, fresh.second);
  }
};
TORCH_MODULE(T5Block);

class T5StackImpl : public nn::Module {
 public:
  T5StackImpl(const T5Config& c, const nn::Embedding& shared, bool decoder)
      : embed_tokens(register_module("embed_tokens", shared)),
        block(register_module("block", nn::ModuleList())),
        final_layer_norm(register_module("final_layer_norm", T5LayerNorm(c))),
        dropout(register_module("dropout", nn::Dropout(c.dropout_rate))) {
    const std::int64_t count = decoder ? c.num_decoder_layers : c.num_layers;
    for (std::int64_t i = 0; i < count; ++i) block->push_back(T5Block(c, i == 0, decoder));
  }

  /// `mask` is added to the scores of the stack's own tokens.
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& mask, T5Context context) {
    const std::int64_t past = context.own == nullptr ? 0 : context.own->length();
    torch::Tensor x = dropout->forward(embed_tokens->forward(ids));
    auto& first = *block[0]->as<T5Block>();
    context.bias =
        first.self->attention->bias(ids.size(1), past + ids.size(1), ids.device()) + mask;
    std::size_t number = 0;
    for (const auto& each : *block) x = each->as<T5Block>()->forward(x, context, number++);
    return dropout->forward(final_layer_norm->forward(x));
  }

  nn::Embedding embed_tokens;
  nn::ModuleList block;
  T5LayerNorm final_layer_norm;
  nn::Dropout dropout;
};
TORCH_MODULE(T5Stack);

class T5ForConditionalGenerationImpl : public nn::Module {
 public:
  explicit T5ForConditionalGenerationImpl(const T5Config& c)
      : shared(register_module("shared", nn::Embedding(c.vocab_size, c.d_model))),
        encoder(register_module("encoder", T5Stack(c, shared, /*decoder=*/false))),
        decoder(register_module("decoder", T5Stack(c, shared, /*decoder=*/true))),
        lm_head(register_module("lm_head", linear(c.d_model, c.vocab_size))),
        config_(c) {
    if (c.tie_word_embeddings) lm_head->weight = shared->weight;
  }

  /// Token ids [batch, time], which of them there are (1; padding 0), and the decoder's token ids
  /// [batch, target time] to logits [batch, target time, vocab_size].
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& attention_mask,
                        const torch::Tensor& decoder_ids) {
    const torch::Tensor mask = padding_mask(attention_mask);
    return decode(decoder_ids, {{}, encode(ids, mask), mask});
  }

  /// What the decoder says to `ids`: [batch, 1 + at most `count`], with the start token.
  torch::Tensor generate(const torch::Tensor& ids, const torch::Tensor& attention_mask,
                         std::int64_t count, const GenerateOptions& how = {}) {
    const generation::Evaluating evaluating(*this);
    KeyValueCache own, of_memory;
    const torch::Tensor mask = padding_mask(attention_mask);
    const T5Context context{{}, encode(ids, mask), mask, &own, &of_memory};
    const torch::Tensor start =
        torch::full({ids.size(0), 1}, config_.decoder_start_token_id, ids.options());
    return generation::generate(start, count, how, [&](const torch::Tensor& all) {
      return decode(all.slice(/*dim=*/1, own.length()), context).select(/*dim=*/1, -1);
    });
  }

  nn::Embedding shared;
  T5Stack encoder, decoder;
  nn::Linear lm_head;

 private:
  /// A number that no score reaches where nothing is to be read, 0 elsewhere: [batch, 1, 1, time].
  torch::Tensor padding_mask(const torch::Tensor& attention_mask) const {
    return hidden((attention_mask == 0).unsqueeze(1).unsqueeze(1));
  }

  torch::Tensor hidden(const torch::Tensor& where) const {
    const auto options = torch::dtype(shared->weight.scalar_type()).device(where.device());
    return torch::zeros(where.sizes(), options).masked_fill(where, -1e9);
  }

  torch::Tensor encode(const torch::Tensor& ids, const torch::Tensor& mask) {
    return encoder->forward(ids, mask, {});
  }

  torch::Tensor decode(const torch::Tensor& ids, const T5Context& context) {
    const std::int64_t past = context.own == nullptr ? 0 : context.own->length();
    const std::int64_t time = ids.size(1), all = past + time;
    const torch::Tensor later =
        torch::ones({time, all}, torch::dtype(torch::kBool).device(ids.device())).triu(past + 1);
    torch::Tensor x = decoder->forward(ids, hidden(later), context);
    if (config_.scale_outputs) x = x * std::pow(static_cast<double>(config_.d_model), -0.5);
    return lm_head->forward(x);
  }

  T5Config config_;
};
TORCH_MODULE(T5ForConditionalGeneration);

}  // namespace t5
