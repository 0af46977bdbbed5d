#pragma once

#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

// BERT as LiBai writes it (libai/models/bert_model.py): a free position parameter, a mask module,
// layers with a layer_idx, a final norm that belongs to no layer, a pooler, heads with a tied
// table, and set_pipeline_stage_id. Of torch::nn's layers; of the library's parallel ones where it
// is given an MPU.
namespace libai_bert {

using torch::Tensor;

struct BertConfig {
  int64_t words = 29, positions = 7, hidden = 15, heads = 3;
  int layers = 4;
  const oslo::MPU* mpu = nullptr;

  torch::nn::Linear linear(int64_t in, int64_t out, const char* parallel, int layer_idx) const {
    if (mpu == nullptr) return torch::nn::Linear(in, out);
    const oslo::nn::Linear own(
        oslo::nn::LinearOptions(in, out).parallel(parallel).layer_idx(layer_idx), *mpu);
    return torch::nn::Linear(std::static_pointer_cast<torch::nn::LinearImpl>(own.ptr()));
  }
  torch::nn::Embedding table() const {
    const torch::nn::EmbeddingOptions options(words, hidden);
    if (mpu == nullptr) return torch::nn::Embedding(options);
    const oslo::nn::VocabParallelEmbedding own(options, *mpu, "tensor", 0);
    return torch::nn::Embedding(std::static_pointer_cast<torch::nn::EmbeddingImpl>(own.ptr()));
  }
  torch::nn::LayerNorm norm() const {
    return torch::nn::LayerNorm(torch::nn::LayerNormOptions({hidden}));
  }
};

struct BertEmbeddingsImpl : torch::nn::Module {
  explicit BertEmbeddingsImpl(const BertConfig& c)
      : words(register_module("vocab_embeddings", c.table())),
        types(register_module("tokentype_embeddings", torch::nn::Embedding(2, c.hidden))) {}
  Tensor forward(const Tensor& tokens, const Tensor& types_of) {
    return words(tokens) + types(types_of);
  }
  torch::nn::Embedding words, types;
};
TORCH_MODULE(BertEmbeddings);

struct BertExtendedAttnMaskImpl : torch::nn::Module {
  Tensor forward(const Tensor& tokens) { return (tokens != 0).unsqueeze(1).unsqueeze(2); }
};
TORCH_MODULE(BertExtendedAttnMask);

struct TransformerLayerImpl : torch::nn::Module, oslo::LayerIdx {
  TransformerLayerImpl(const BertConfig& c, int layer_idx)
      : oslo::LayerIdx(layer_idx),
        heads(c.heads),
        norm1(register_module("input_layernorm", c.norm())),
        qkv(register_module("query_key_value", c.linear(c.hidden, 3 * c.hidden, "col", layer_idx))),
        dense(register_module("dense", c.linear(c.hidden, c.hidden, "row", layer_idx))),
        norm2(register_module("post_attention_layernorm", c.norm())),
        up(register_module("dense_h_to_4h", c.linear(c.hidden, 2 * c.hidden, "col", layer_idx))),
        down(register_module("dense_4h_to_h", c.linear(2 * c.hidden, c.hidden, "row", layer_idx))) {
  }

  Tensor forward(const Tensor& x, const Tensor& mask) {
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

struct BertPoolerImpl : torch::nn::Module {
  explicit BertPoolerImpl(const BertConfig& c)
      : dense(register_module("dense", c.linear(c.hidden, c.hidden, "data", -1))) {}
  Tensor forward(const Tensor& x) { return torch::tanh(dense(x.select(1, 0))); }
  torch::nn::Linear dense;
};
TORCH_MODULE(BertPooler);

struct BertModelImpl : torch::nn::Module {
  explicit BertModelImpl(const BertConfig& c)
      : pos_embed(register_parameter("pos_embed", torch::randn({1, c.positions, c.hidden}))),
        embeddings(register_module("embeddings", BertEmbeddings(c))),
        mask(register_module("extended_attn_mask", BertExtendedAttnMask())),
        encoders(register_module("encoders", torch::nn::ModuleList())),
        final_layernorm(register_module("final_layernorm", c.norm())),
        pooler(register_module("pooler", BertPooler(c))) {
    for (int i = 0; i < c.layers; ++i) encoders->push_back(TransformerLayer(c, i));
  }

  std::pair<Tensor, Tensor> forward(const Tensor& tokens, const Tensor& types) {
    const auto seen = mask(tokens);
    auto x = embeddings(tokens, types) + pos_embed.slice(1, 0, tokens.size(1));
    for (const auto& layer : *encoders) x = layer->as<TransformerLayer>()->forward(x, seen);
    x = final_layernorm(x);
    return {x, pooler(x)};
  }

  Tensor pos_embed;
  BertEmbeddings embeddings;
  BertExtendedAttnMask mask;
  torch::nn::ModuleList encoders;
  torch::nn::LayerNorm final_layernorm;
  BertPooler pooler;
};
TORCH_MODULE(BertModel);

struct BertPreTrainingHeadsImpl : torch::nn::Module {
  explicit BertPreTrainingHeadsImpl(const BertConfig& c)
      : transform(register_module("lm_transform", c.linear(c.hidden, c.hidden, "data", -1))),
        next(register_module("seq_relationship", c.linear(c.hidden, 2, "data", -1))) {}
  std::pair<Tensor, Tensor> forward(const Tensor& x, const Tensor& pooled, const Tensor& table) {
    return {torch::matmul(torch::gelu(transform(x)), table.t()), next(pooled)};
  }
  torch::nn::Linear transform, next;
};
TORCH_MODULE(BertPreTrainingHeads);

struct BertForPreTrainingImpl : torch::nn::Module {
  explicit BertForPreTrainingImpl(const BertConfig& c)
      : bert(register_module("bert", BertModel(c))),
        cls(register_module("cls_head", BertPreTrainingHeads(c))) {}

  /// The mean loss of masked words (rows alike) and of the next sentence.
  Tensor loss(const Tensor& tokens, const Tensor& types, const Tensor& labels, const Tensor& next) {
    const auto [x, pooled] = bert->forward(tokens, types);
    const auto [words, follows] = cls->forward(x, pooled, bert->embeddings->words->weight);
    return torch::nn::functional::cross_entropy(words.flatten(0, 1), labels.flatten()) +
           torch::nn::functional::cross_entropy(follows, next);
  }
  Tensor loss(const std::vector<Tensor>& batch) {
    return loss(batch[0], batch[1], batch[2], batch[3]);
  }

  /// LiBai's, line for line: `module_block.config.stage_id = dist_utils.get_layer_stage_id(idx)` is
  /// `stages.set_layer_idx(module, idx)`.
  static void set_pipeline_stage_id(BertForPreTrainingImpl& model, oslo::StageAssignment& stages) {
    for (const auto& module : model.modules()) {
      if (module->as<BertEmbeddings>() || module->as<BertExtendedAttnMask>()) {
        stages.set_layer_idx(module, 0);
      } else if (const auto* layer = module->as<TransformerLayer>()) {
        stages.set_layer_idx(module, *layer->layer_idx);
      } else if (module->as<BertPooler>() || module->as<BertPreTrainingHeads>()) {
        stages.set_layer_idx(module, -1);
      }
    }
    stages.set_layer_idx(model.bert->pos_embed, 0);
    stages.set_layer_idx(model.bert->final_layernorm, -1);
  }

  BertModel bert;
  BertPreTrainingHeads cls;
};
TORCH_MODULE(BertForPreTraining);

/// Tokens (of which 0 is padding, though never the first), types, labels, whether a sentence
/// follows.
inline std::vector<Tensor> batch(const BertConfig& c, int64_t rows) {
  Tensor tokens = torch::randint(c.words, {rows, c.positions}, torch::kLong);
  tokens.select(1, 0).fill_(1);
  return {tokens, torch::randint(2, {rows, c.positions}, torch::kLong),
          torch::randint(c.words, {rows, c.positions}, torch::kLong),
          torch::randint(2, {rows}, torch::kLong)};
}

}  // namespace libai_bert
