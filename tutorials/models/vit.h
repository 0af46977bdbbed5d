#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <nlohmann/json.hpp>

#include "config_json.h"

/// The vision transformer (Dosovitskiy et al. 2020) as one would write it for one device. Module
/// and parameter names are those in the files of Hugging Face's ViTForImageClassification.
namespace vit {
namespace nn = torch::nn;

/// Names and defaults are those of Hugging Face's config.json; `num_labels` is the length of its
/// "id2label".
struct ViTConfig {
  std::int64_t hidden_size = 768;
  std::int64_t num_hidden_layers = 12;
  std::int64_t num_attention_heads = 12;
  std::int64_t intermediate_size = 3072;
  std::int64_t image_size = 224;
  std::int64_t patch_size = 16;
  std::int64_t num_channels = 3;
  std::int64_t num_labels = 2;
  double layer_norm_eps = 1e-12;
  double hidden_dropout_prob = 0.0;
  bool qkv_bias = true;

  nlohmann::json to_json() const {
    nlohmann::json labels = nlohmann::json::object();
    for (std::int64_t i = 0; i < num_labels; ++i) {
      labels[std::to_string(i)] = "LABEL_" + std::to_string(i);
    }
    return {{"model_type", "vit"},
            {"architectures", nlohmann::json::array({"ViTForImageClassification"})},
            {"hidden_act", "gelu"},
            {"hidden_size", hidden_size},
            {"num_hidden_layers", num_hidden_layers},
            {"num_attention_heads", num_attention_heads},
            {"intermediate_size", intermediate_size},
            {"image_size", image_size},
            {"patch_size", patch_size},
            {"num_channels", num_channels},
            {"id2label", labels},
            {"layer_norm_eps", layer_norm_eps},
            {"hidden_dropout_prob", hidden_dropout_prob},
            {"attention_probs_dropout_prob", 0.0},
            {"qkv_bias", qkv_bias}};
  }

  /// Reads the keys above; others are ignored.
  /// Throws std::runtime_error if a key is missing, or asks for what this model has not.
  static ViTConfig from_json(const nlohmann::json& json) {
    return config_json::read_config(json, "vit", [&] {
      ViTConfig config;
      json.at("hidden_size").get_to(config.hidden_size);
      json.at("num_hidden_layers").get_to(config.num_hidden_layers);
      json.at("num_attention_heads").get_to(config.num_attention_heads);
      json.at("intermediate_size").get_to(config.intermediate_size);
      json.at("image_size").get_to(config.image_size);
      json.at("patch_size").get_to(config.patch_size);
      json.at("num_channels").get_to(config.num_channels);
      json.at("layer_norm_eps").get_to(config.layer_norm_eps);
      json.at("hidden_dropout_prob").get_to(config.hidden_dropout_prob);
      config.qkv_bias = config_json::value_or(json, "qkv_bias", true);
      const auto labels = json.find("id2label");
      if (labels != json.end()) config.num_labels = static_cast<std::int64_t>(labels->size());
      config_json::expect(json, "hidden_act", "gelu");
      config_json::expect(json, "attention_probs_dropout_prob", 0.0);
      return config;
    });
  }
};

inline nn::LayerNorm layer_norm(const ViTConfig& c) {
  return nn::LayerNorm(nn::LayerNormOptions({c.hidden_size}).eps(c.layer_norm_eps));
}

class ViTPatchEmbeddingsImpl : public nn::Module {
 public:
  explicit ViTPatchEmbeddingsImpl(const ViTConfig& c)
      : projection(register_module(
            "projection", nn::Conv2d(nn::Conv2dOptions(c.num_channels, c.hidden_size, c.patch_size)
                                         .stride(c.patch_size)))) {}

  /// [batch, channels, height, width] to [batch, patches, hidden_size].
  torch::Tensor forward(const torch::Tensor& images) {
    return projection->forward(images).flatten(2).transpose(1, 2);
  }

  nn::Conv2d projection;
};
TORCH_MODULE(ViTPatchEmbeddings);

class ViTEmbeddingsImpl : public nn::Module {
 public:
  explicit ViTEmbeddingsImpl(const ViTConfig& c)
      : cls_token(register_parameter("cls_token", torch::randn({1, 1, c.hidden_size}) * 0.02)),
        position_embeddings(register_parameter(
            "position_embeddings",
            torch::randn({1, 1 + (c.image_size / c.patch_size) * (c.image_size / c.patch_size),
                          c.hidden_size}) *
                0.02)),
        patch_embeddings(register_module("patch_embeddings", ViTPatchEmbeddings(c))),
        dropout(register_module("dropout", nn::Dropout(c.hidden_dropout_prob))) {}

  torch::Tensor forward(const torch::Tensor& images) {
    const torch::Tensor first = cls_token.expand({images.size(0), -1, -1});
    const torch::Tensor x = torch::cat({first, patch_embeddings->forward(images)}, 1);
    return dropout->forward(x + position_embeddings);
  }

  torch::Tensor cls_token, position_embeddings;
  ViTPatchEmbeddings patch_embeddings;
  nn::Dropout dropout;
};
TORCH_MODULE(ViTEmbeddings);

class ViTSelfAttentionImpl : public nn::Module {
 public:
  explicit ViTSelfAttentionImpl(const ViTConfig& c)
      : query(register_module("query", projection(c))),
        key(register_module("key", projection(c))),
        value(register_module("value", projection(c))),
        heads_(c.num_attention_heads) {}

  torch::Tensor forward(const torch::Tensor& x) {
    const std::int64_t batch = x.size(0), time = x.size(1), hidden = x.size(2);
    const auto heads = [&](const torch::Tensor& t) {
      return t.view({batch, time, heads_, hidden / heads_}).transpose(1, 2);
    };
    const torch::Tensor y = at::scaled_dot_product_attention(
        heads(query->forward(x)), heads(key->forward(x)), heads(value->forward(x)));
    return y.transpose(1, 2).reshape({batch, time, hidden});
  }

  nn::Linear query, key, value;

 private:
  static nn::Linear projection(const ViTConfig& c) {
    return nn::Linear(nn::LinearOptions(c.hidden_size, c.hidden_size).bias(c.qkv_bias));
  }

  std::int64_t heads_;
};
TORCH_MODULE(ViTSelfAttention);

/// A linear layer that Hugging Face's names call "output.dense" and the like.
class ViTDenseImpl : public nn::Module {
 public:
  ViTDenseImpl(std::int64_t in, std::int64_t out)
      : dense(register_module("dense", nn::Linear(in, out))) {}
  torch::Tensor forward(const torch::Tensor& x) { return dense->forward(x); }
  nn::Linear dense;
};
TORCH_MODULE(ViTDense);

class ViTAttentionImpl : public nn::Module {
 public:
  explicit ViTAttentionImpl(const ViTConfig& c)
      : attention(register_module("attention", ViTSelfAttention(c))),
        output(register_module("output", ViTDense(c.hidden_size, c.hidden_size))) {}
  torch::Tensor forward(const torch::Tensor& x) { return output->forward(attention->forward(x)); }
  ViTSelfAttention attention;
  ViTDense output;
};
TORCH_MODULE(ViTAttention);

class ViTLayerImpl : public nn::Module {
 public:
  explicit ViTLayerImpl(const ViTConfig& c)
      : attention(register_module("attention", ViTAttention(c))),
        intermediate(register_module("intermediate", ViTDense(c.hidden_size, c.intermediate_size))),
        output(register_module("output", ViTDense(c.intermediate_size, c.hidden_size))),
        layernorm_before(register_module("layernorm_before", layer_norm(c))),
        layernorm_after(register_module("layernorm_after", layer_norm(c))),
        dropout(register_module("dropout", nn::Dropout(c.hidden_dropout_prob))) {}

  torch::Tensor forward(torch::Tensor x) {
    x = x + dropout->forward(attention->forward(layernorm_before->forward(x)));
    const torch::Tensor inner = torch::gelu(intermediate->forward(layernorm_after->forward(x)));
    return x + dropout->forward(output->forward(inner));
  }

  ViTAttention attention;
  ViTDense intermediate, output;
  nn::LayerNorm layernorm_before, layernorm_after;
  nn::Dropout dropout;
};
TORCH_MODULE(ViTLayer);

class ViTEncoderImpl : public nn::Module {
 public:
  explicit ViTEncoderImpl(const ViTConfig& c) : layer(register_module("layer", nn::ModuleList())) {
    for (std::int64_t i = 0; i < c.num_hidden_layers; ++i) layer->push_back(ViTLayer(c));
  }

  torch::Tensor forward(torch::Tensor x) {
    for (const auto& each : *layer) x = each->as<ViTLayer>()->forward(x);
    return x;
  }

  nn::ModuleList layer;
};
TORCH_MODULE(ViTEncoder);

class ViTModelImpl : public nn::Module {
 public:
  explicit ViTModelImpl(const ViTConfig& c)
      : embeddings(register_module("embeddings", ViTEmbeddings(c))),
        encoder(register_module("encoder", ViTEncoder(c))),
        layernorm(register_module("layernorm", layer_norm(c))) {}

  /// [batch, channels, height, width] to [batch, 1 + patches, hidden_size].
  torch::Tensor forward(const torch::Tensor& images) {
    return layernorm->forward(encoder->forward(embeddings->forward(images)));
  }

  ViTEmbeddings embeddings;
  ViTEncoder encoder;
  nn::LayerNorm layernorm;
};
TORCH_MODULE(ViTModel);

class ViTForImageClassificationImpl : public nn::Module {
 public:
  explicit ViTForImageClassificationImpl(const ViTConfig& c)
      : vit(register_module("vit", ViTModel(c))),
        classifier(register_module("classifier", nn::Linear(c.hidden_size, c.num_labels))) {}

  /// [batch, channels, height, width] to logits [batch, num_labels].
  torch::Tensor forward(const torch::Tensor& images) {
    return classifier->forward(vit->forward(images).select(/*dim=*/1, 0));
  }

  ViTModel vit;
  nn::Linear classifier;
};
TORCH_MODULE(ViTForImageClassification);

}  // namespace vit
