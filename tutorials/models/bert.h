#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <nlohmann/json.hpp>

#include "config_json.h"

/// BERT (Devlin et al. 2018) as one would write it for one device. Module and parameter names are
/// those of Hugging Face's BertForMaskedLM.
namespace bert {
namespace nn = torch::nn;

/// Names and defaults are those of Hugging Face's config.json.
struct BertConfig {
  std::int64_t vocab_size = 30522;
  std::int64_t hidden_size = 768;
  std::int64_t num_hidden_layers = 12;
  std::int64_t num_attention_heads = 12;
  std::int64_t intermediate_size = 3072;
  std::int64_t max_position_embeddings = 512;
  std::int64_t type_vocab_size = 2;
  double layer_norm_eps = 1e-12;
  double hidden_dropout_prob = 0.1;
  double attention_probs_dropout_prob = 0.1;

  nlohmann::json to_json() const {
    return {{"model_type", "bert"},
            {"architectures", nlohmann::json::array({"BertForMaskedLM"})},
            {"hidden_act", "gelu"},
            {"tie_word_embeddings", true},
            {"pad_token_id", 0},
            {"vocab_size", vocab_size},
            {"hidden_size", hidden_size},
            {"num_hidden_layers", num_hidden_layers},
            {"num_attention_heads", num_attention_heads},
            {"intermediate_size", intermediate_size},
            {"max_position_embeddings", max_position_embeddings},
            {"type_vocab_size", type_vocab_size},
            {"layer_norm_eps", layer_norm_eps},
            {"hidden_dropout_prob", hidden_dropout_prob},
            {"attention_probs_dropout_prob", attention_probs_dropout_prob}};
  }

  /// Reads the keys above; others are ignored.
  /// Throws std::runtime_error if a key is missing, or asks for what this model has not.
  static BertConfig from_json(const nlohmann::json& json) {
    return config_json::read_config(json, "bert", [&] {
      BertConfig config;
      json.at("vocab_size").get_to(config.vocab_size);
      json.at("hidden_size").get_to(config.hidden_size);
      json.at("num_hidden_layers").get_to(config.num_hidden_layers);
      json.at("num_attention_heads").get_to(config.num_attention_heads);
      json.at("intermediate_size").get_to(config.intermediate_size);
      json.at("max_position_embeddings").get_to(config.max_position_embeddings);
      json.at("type_vocab_size").get_to(config.type_vocab_size);
      json.at("layer_norm_eps").get_to(config.layer_norm_eps);
      json.at("hidden_dropout_prob").get_to(config.hidden_dropout_prob);
      json.at("attention_probs_dropout_prob").get_to(config.attention_probs_dropout_prob);
      config_json::expect(json, "hidden_act", "gelu");
      config_json::expect(json, "tie_word_embeddings", true);
      config_json::expect(json, "position_embedding_type", "absolute");
      config_json::expect(json, "is_decoder", false);
      return config;
    });
  }
};

inline nn::LayerNorm layer_norm(const BertConfig& c) {
  return nn::LayerNorm(nn::LayerNormOptions({c.hidden_size}).eps(c.layer_norm_eps));
}

class BertEmbeddingsImpl : public nn::Module {
 public:
  explicit BertEmbeddingsImpl(const BertConfig& c)
      : word_embeddings(
            register_module("word_embeddings", nn::Embedding(c.vocab_size, c.hidden_size))),
        position_embeddings(register_module(
            "position_embeddings", nn::Embedding(c.max_position_embeddings, c.hidden_size))),
        token_type_embeddings(register_module("token_type_embeddings",
                                              nn::Embedding(c.type_vocab_size, c.hidden_size))),
        norm(register_module("LayerNorm", layer_norm(c))),
        dropout(register_module("dropout", nn::Dropout(c.hidden_dropout_prob))) {}

  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& types) {
    const torch::Tensor positions = torch::arange(ids.size(1), ids.options());
    const torch::Tensor x = word_embeddings->forward(ids) + token_type_embeddings->forward(types) +
                            position_embeddings->forward(positions);
    return dropout->forward(norm->forward(x));
  }

  nn::Embedding word_embeddings, position_embeddings, token_type_embeddings;
  nn::LayerNorm norm;
  nn::Dropout dropout;
};
TORCH_MODULE(BertEmbeddings);

class BertSelfAttentionImpl : public nn::Module {
 public:
  explicit BertSelfAttentionImpl(const BertConfig& c)
      : query(register_module("query", nn::Linear(c.hidden_size, c.hidden_size))),
        key(register_module("key", nn::Linear(c.hidden_size, c.hidden_size))),
        value(register_module("value", nn::Linear(c.hidden_size, c.hidden_size))),
        heads_(c.num_attention_heads),
        dropout_(c.attention_probs_dropout_prob) {}

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask) {
    const std::int64_t batch = x.size(0), time = x.size(1), hidden = x.size(2);
    const auto heads = [&](const torch::Tensor& t) {
      return t.view({batch, time, heads_, hidden / heads_}).transpose(1, 2);
    };
    const torch::Tensor y = at::scaled_dot_product_attention(
        heads(query->forward(x)), heads(key->forward(x)), heads(value->forward(x)), mask,
        is_training() ? dropout_ : 0.0);
    return y.transpose(1, 2).reshape({batch, time, hidden});
  }

  nn::Linear query, key, value;

 private:
  std::int64_t heads_;
  double dropout_;
};
TORCH_MODULE(BertSelfAttention);

/// A linear layer, and the norm of what it is added to.
class BertOutputImpl : public nn::Module {
 public:
  BertOutputImpl(const BertConfig& c, std::int64_t in)
      : dense(register_module("dense", nn::Linear(in, c.hidden_size))),
        norm(register_module("LayerNorm", layer_norm(c))),
        dropout(register_module("dropout", nn::Dropout(c.hidden_dropout_prob))) {}

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& residual) {
    return norm->forward(dropout->forward(dense->forward(x)) + residual);
  }

  nn::Linear dense;
  nn::LayerNorm norm;
  nn::Dropout dropout;
};
TORCH_MODULE(BertOutput);

class BertAttentionImpl : public nn::Module {
 public:
  explicit BertAttentionImpl(const BertConfig& c)
      : self(register_module("self", BertSelfAttention(c))),
        output(register_module("output", BertOutput(c, c.hidden_size))) {}

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask) {
    return output->forward(self->forward(x, mask), x);
  }

  BertSelfAttention self;
  BertOutput output;
};
TORCH_MODULE(BertAttention);

class BertIntermediateImpl : public nn::Module {
 public:
  explicit BertIntermediateImpl(const BertConfig& c)
      : dense(register_module("dense", nn::Linear(c.hidden_size, c.intermediate_size))) {}
  torch::Tensor forward(const torch::Tensor& x) { return torch::gelu(dense->forward(x)); }
  nn::Linear dense;
};
TORCH_MODULE(BertIntermediate);

class BertLayerImpl : public nn::Module {
 public:
  explicit BertLayerImpl(const BertConfig& c)
      : attention(register_module("attention", BertAttention(c))),
        intermediate(register_module("intermediate", BertIntermediate(c))),
        output(register_module("output", BertOutput(c, c.intermediate_size))) {}

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask) {
    const torch::Tensor attended = attention->forward(x, mask);
    return output->forward(intermediate->forward(attended), attended);
  }

  BertAttention attention;
  BertIntermediate intermediate;
  BertOutput output;
};
TORCH_MODULE(BertLayer);

class BertEncoderImpl : public nn::Module {
 public:
  explicit BertEncoderImpl(const BertConfig& c)
      : layer(register_module("layer", nn::ModuleList())) {
    for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) layer->push_back(BertLayer(c));
  }

  torch::Tensor forward(torch::Tensor x, const torch::Tensor& mask) {
    for (const auto& each : *layer) x = each->as<BertLayer>()->forward(x, mask);
    return x;
  }

  nn::ModuleList layer;
};
TORCH_MODULE(BertEncoder);

class BertModelImpl : public nn::Module {
 public:
  explicit BertModelImpl(const BertConfig& c)
      : embeddings(register_module("embeddings", BertEmbeddings(c))),
        encoder(register_module("encoder", BertEncoder(c))) {}

  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& types,
                        const torch::Tensor& mask) {
    return encoder->forward(embeddings->forward(ids, types), mask);
  }

  BertEmbeddings embeddings;
  BertEncoder encoder;
};
TORCH_MODULE(BertModel);

class BertTransformImpl : public nn::Module {
 public:
  explicit BertTransformImpl(const BertConfig& c)
      : dense(register_module("dense", nn::Linear(c.hidden_size, c.hidden_size))),
        norm(register_module("LayerNorm", layer_norm(c))) {}

  torch::Tensor forward(const torch::Tensor& x) {
    return norm->forward(torch::gelu(dense->forward(x)));
  }

  nn::Linear dense;
  nn::LayerNorm norm;
};
TORCH_MODULE(BertTransform);

class BertPredictionsImpl : public nn::Module {
 public:
  explicit BertPredictionsImpl(const BertConfig& c)
      : bias(register_parameter("bias", torch::zeros({c.vocab_size}))),
        transform(register_module("transform", BertTransform(c))),
        decoder(register_module("decoder", nn::Linear(c.hidden_size, c.vocab_size))) {
    decoder->bias = bias;
  }

  torch::Tensor forward(const torch::Tensor& x) { return decoder->forward(transform->forward(x)); }

  torch::Tensor bias;
  BertTransform transform;
  nn::Linear decoder;  ///< its weight is the word embeddings'
};
TORCH_MODULE(BertPredictions);

class BertHeadImpl : public nn::Module {
 public:
  explicit BertHeadImpl(const BertConfig& c)
      : predictions(register_module("predictions", BertPredictions(c))) {}
  torch::Tensor forward(const torch::Tensor& x) { return predictions->forward(x); }
  BertPredictions predictions;
};
TORCH_MODULE(BertHead);

class BertForMaskedLMImpl : public nn::Module {
 public:
  explicit BertForMaskedLMImpl(const BertConfig& c)
      : bert(register_module("bert", BertModel(c))), cls(register_module("cls", BertHead(c))) {
    cls->predictions->decoder->weight = bert->embeddings->word_embeddings->weight;
  }

  /// Token ids and types [batch, time] and which tokens there are (1; padding 0) to logits
  /// [batch, time, vocab_size].
  torch::Tensor forward(const torch::Tensor& ids, const torch::Tensor& types,
                        const torch::Tensor& attention_mask) {
    const torch::Tensor mask = (attention_mask != 0).unsqueeze(1).unsqueeze(1);
    return cls->forward(bert->forward(ids, types, mask));
  }

  BertModel bert;
  BertHead cls;
};
TORCH_MODULE(BertForMaskedLM);

}  // namespace bert
