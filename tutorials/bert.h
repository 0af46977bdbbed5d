#pragma once

#include <torch/torch.h>

#include <utility>

// BERT with LiBai's names, for one device: embeddings, layers whose norms come first, a final norm,
// a pooler, and heads for masked words and for the next sentence.
namespace bert {

struct BertConfig {
  int64_t vocabulary = 30522, positions = 512, hidden = 1024, layers = 24, heads = 16;
};

struct BertEmbeddingsImpl : torch::nn::Module {
  explicit BertEmbeddingsImpl(const BertConfig& c)
      : words(register_module("vocab_embeddings", torch::nn::Embedding(c.vocabulary, c.hidden))),
        places(register_module("position_embeddings", torch::nn::Embedding(c.positions, c.hidden))),
        types(register_module("tokentype_embeddings", torch::nn::Embedding(2, c.hidden))) {}

  torch::Tensor forward(const torch::Tensor& tokens, const torch::Tensor& types_of) {
    const auto numbers = torch::arange(tokens.size(1), tokens.options());
    return words(tokens) + places(numbers) + types(types_of);
  }

  torch::nn::Embedding words, places, types;
};
TORCH_MODULE(BertEmbeddings);

struct TransformerLayerImpl : torch::nn::Module {
  explicit TransformerLayerImpl(const BertConfig& c)
      : heads(c.heads),
        norm1(register_module("input_layernorm", norm(c))),
        qkv(register_module("query_key_value", torch::nn::Linear(c.hidden, 3 * c.hidden))),
        dense(register_module("dense", torch::nn::Linear(c.hidden, c.hidden))),
        norm2(register_module("post_attention_layernorm", norm(c))),
        up(register_module("dense_h_to_4h", torch::nn::Linear(c.hidden, 4 * c.hidden))),
        down(register_module("dense_4h_to_h", torch::nn::Linear(4 * c.hidden, c.hidden))) {}

  static torch::nn::LayerNorm norm(const BertConfig& c) {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({c.hidden}));
  }

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask) {
    const auto B = x.size(0), T = x.size(1), C = x.size(2);
    const auto parts =
        qkv(norm1(x)).view({B, T, heads, 3 * C / heads}).transpose(1, 2).chunk(3, -1);
    const auto attended = torch::scaled_dot_product_attention(parts[0], parts[1], parts[2], mask);
    const auto y = x + dense(attended.transpose(1, 2).reshape({B, T, C}));
    return y + down(torch::gelu(up(norm2(y))));
  }

  int64_t heads;
  torch::nn::LayerNorm norm1;
  torch::nn::Linear qkv, dense;
  torch::nn::LayerNorm norm2;
  torch::nn::Linear up, down;
};
TORCH_MODULE(TransformerLayer);

struct BertForPreTrainingImpl : torch::nn::Module {
  explicit BertForPreTrainingImpl(const BertConfig& c)
      : embeddings(register_module("embeddings", BertEmbeddings(c))),
        layers(register_module("encoders", torch::nn::ModuleList())),
        final_layernorm(register_module("final_layernorm", TransformerLayerImpl::norm(c))),
        pooler(register_module("pooler", torch::nn::Linear(c.hidden, c.hidden))),
        transform(register_module("lm_transform", torch::nn::Linear(c.hidden, c.hidden))),
        next_sentence(register_module("seq_relationship", torch::nn::Linear(c.hidden, 2))) {
    for (int64_t i = 0; i < c.layers; ++i) layers->push_back(TransformerLayer(c));
  }

  /// The logits of every word, and of whether the second sentence follows the first.
  std::pair<torch::Tensor, torch::Tensor> forward(const torch::Tensor& tokens,
                                                  const torch::Tensor& types) {
    const auto mask = (tokens != 0).unsqueeze(1).unsqueeze(2);
    auto x = embeddings(tokens, types);
    for (const auto& layer : *layers) x = layer->as<TransformerLayer>()->forward(x, mask);
    x = final_layernorm(x);
    const auto words = torch::matmul(torch::gelu(transform(x)), embeddings->words->weight.t());
    return {words, next_sentence(torch::tanh(pooler(x.select(1, 0))))};
  }

  BertEmbeddings embeddings;
  torch::nn::ModuleList layers;
  torch::nn::LayerNorm final_layernorm;
  torch::nn::Linear pooler, transform, next_sentence;
};
TORCH_MODULE(BertForPreTraining);

}  // namespace bert
