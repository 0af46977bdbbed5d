#pragma once

#include <torch/torch.h>

#include <cmath>
#include <limits>

// RoBERTa with a masked language model head: positions counted from the padding mask, three
// embeddings summed, an additive mask of the lowest float, a head of dense, gelu and norm whose
// decoder is the word embedding with a bias of its own.
namespace models {

struct RobertaConfig {
  int64_t vocab_size = 59, pad_token_id = 1, max_position_embeddings = 20, type_vocab_size = 2,
          hidden_size = 40, num_heads = 4, intermediate_size = 88, num_layers = 2;
};

class RobertaEmbeddingsImpl : public torch::nn::Module {
 public:
  explicit RobertaEmbeddingsImpl(const RobertaConfig& c) : padding_idx_(c.pad_token_id) {
    word_embeddings = register_module(
        "word_embeddings",
        torch::nn::Embedding(
            torch::nn::EmbeddingOptions(c.vocab_size, c.hidden_size).padding_idx(c.pad_token_id)));
    position_embeddings = register_module(
        "position_embeddings",
        torch::nn::Embedding(torch::nn::EmbeddingOptions(c.max_position_embeddings, c.hidden_size)
                                 .padding_idx(c.pad_token_id)));
    token_type_embeddings = register_module("token_type_embeddings",
                                            torch::nn::Embedding(c.type_vocab_size, c.hidden_size));
    layer_norm = register_module(
        "layer_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({c.hidden_size}).eps(1e-5)));
    dropout = register_module("dropout", torch::nn::Dropout(0.0));
  }

  torch::Tensor forward(const torch::Tensor& input_ids) {
    const auto mask = input_ids.ne(padding_idx_).to(torch::kInt);
    const auto incremental_indices = torch::cumsum(mask, 1).type_as(mask) * mask;
    const auto position_ids = incremental_indices.to(torch::kLong) + padding_idx_;
    const auto token_type_ids = torch::zeros_like(input_ids);
    auto embeddings = word_embeddings(input_ids) + token_type_embeddings(token_type_ids);
    embeddings += position_embeddings(position_ids);
    return dropout(layer_norm(embeddings));
  }

  torch::nn::Embedding word_embeddings{nullptr}, position_embeddings{nullptr},
      token_type_embeddings{nullptr};
  torch::nn::LayerNorm layer_norm{nullptr};
  torch::nn::Dropout dropout{nullptr};

 private:
  int64_t padding_idx_;
};
TORCH_MODULE(RobertaEmbeddings);

class RobertaLayerImpl : public torch::nn::Module {
 public:
  explicit RobertaLayerImpl(const RobertaConfig& c)
      : heads_(c.num_heads), head_dim_(c.hidden_size / c.num_heads) {
    const auto linear = [&](const char* name, int64_t in, int64_t out) {
      return register_module(name, torch::nn::Linear(in, out));
    };
    query_ = linear("query", c.hidden_size, c.hidden_size);
    key_ = linear("key", c.hidden_size, c.hidden_size);
    value_ = linear("value", c.hidden_size, c.hidden_size);
    attention_output_ = linear("attention_output", c.hidden_size, c.hidden_size);
    intermediate_ = linear("intermediate", c.hidden_size, c.intermediate_size);
    output_ = linear("output", c.intermediate_size, c.hidden_size);
    const auto norm = torch::nn::LayerNormOptions({c.hidden_size});
    attention_norm_ = register_module("attention_norm", torch::nn::LayerNorm(norm));
    output_norm_ = register_module("output_norm", torch::nn::LayerNorm(norm));
  }

  torch::Tensor forward(const torch::Tensor& hidden, const torch::Tensor& attention_mask) {
    const auto query = transpose_for_scores(query_(hidden));
    const auto key = transpose_for_scores(key_(hidden));
    const auto value = transpose_for_scores(value_(hidden));
    auto scores = torch::matmul(query, key.transpose(-1, -2));
    scores = scores / std::sqrt(static_cast<double>(head_dim_)) + attention_mask;
    const auto probabilities = torch::softmax(scores, -1);
    auto context = torch::matmul(probabilities, value).permute({0, 2, 1, 3}).contiguous();
    context = context.flatten(2);
    const auto attended = attention_norm_(attention_output_(context) + hidden);
    return output_norm_(output_(torch::gelu(intermediate_(attended))) + attended);
  }

 private:
  torch::Tensor transpose_for_scores(const torch::Tensor& x) const {
    return x.unflatten(-1, {heads_, head_dim_}).transpose(1, 2);
  }

  int64_t heads_, head_dim_;
  torch::nn::Linear query_{nullptr}, key_{nullptr}, value_{nullptr}, attention_output_{nullptr},
      intermediate_{nullptr}, output_{nullptr};
  torch::nn::LayerNorm attention_norm_{nullptr}, output_norm_{nullptr};
};
TORCH_MODULE(RobertaLayer);

class RobertaLMHeadImpl : public torch::nn::Module {
 public:
  RobertaLMHeadImpl(const RobertaConfig& c, const torch::Tensor& word_embeddings) {
    dense = register_module("dense", torch::nn::Linear(c.hidden_size, c.hidden_size));
    layer_norm = register_module(
        "layer_norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({c.hidden_size})));
    decoder = register_module(
        "decoder",
        torch::nn::Linear(torch::nn::LinearOptions(c.hidden_size, c.vocab_size).bias(false)));
    decoder->weight = word_embeddings;
    bias = register_parameter("bias", torch::linspace(-0.1, 0.1, c.vocab_size));
  }

  torch::Tensor forward(const torch::Tensor& features) {
    auto x = dense(features);
    x = torch::gelu(x);
    x = layer_norm(x);
    return decoder(x) + bias;
  }

  torch::nn::Linear dense{nullptr}, decoder{nullptr};
  torch::nn::LayerNorm layer_norm{nullptr};
  torch::Tensor bias;
};
TORCH_MODULE(RobertaLMHead);

class RobertaForMaskedLMImpl : public torch::nn::Module {
 public:
  explicit RobertaForMaskedLMImpl(const RobertaConfig& c = {}) : pad_token_id_(c.pad_token_id) {
    embeddings = register_module("embeddings", RobertaEmbeddings(c));
    for (int64_t i = 0; i < c.num_layers; ++i) {
      encoder.push_back(register_module("layer" + std::to_string(i), RobertaLayer(c)));
    }
    lm_head = register_module("lm_head", RobertaLMHead(c, embeddings->word_embeddings->weight));
  }

  torch::Tensor forward(const torch::Tensor& input_ids) {
    const auto attention_mask = input_ids.ne(pad_token_id_).to(torch::kFloat);
    const auto extended = (1.0 - attention_mask.unsqueeze(1).unsqueeze(2)) *
                          static_cast<double>(std::numeric_limits<float>::lowest());
    auto hidden = embeddings(input_ids);
    for (auto& layer : encoder) hidden = layer(hidden, extended);
    return lm_head(hidden);
  }

  RobertaEmbeddings embeddings{nullptr};
  std::vector<RobertaLayer> encoder;
  RobertaLMHead lm_head{nullptr};

 private:
  int64_t pad_token_id_;
};
TORCH_MODULE(RobertaForMaskedLM);

}  // namespace models
