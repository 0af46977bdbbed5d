#include "gpt2.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace gpt2 {
namespace nn = torch::nn;

nlohmann::json GPT2Config::to_json() const {
  // No "model_type" and "architectures": Hugging Face's GPT2LMHeadModel would take our weights for
  // Conv1D's, which are their transposes.
  return {{"activation_function", "gelu_new"},
          {"tie_word_embeddings", true},
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

GPT2Config GPT2Config::from_json(const nlohmann::json& json) {
  try {
    if (json.at("activation_function") != "gelu_new") {
      throw std::runtime_error("config.json: activation_function is " +
                               json.at("activation_function").dump() + ", not \"gelu_new\"");
    }
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
    return config;
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error(std::string("not a GPT-2 config.json: ") + error.what());
  }
}

static nn::LayerNorm layer_norm(const GPT2Config& config) {
  return nn::LayerNorm(nn::LayerNormOptions({config.n_embd}).eps(config.layer_norm_epsilon));
}

GPT2AttentionImpl::GPT2AttentionImpl(const GPT2Config& config)
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

torch::Tensor GPT2AttentionImpl::forward(const torch::Tensor& x) {
  const std::int64_t batch = x.size(0), time = x.size(1), hidden = x.size(2);
  const auto heads = [&](const torch::Tensor& t) {
    return t.view({batch, time, n_head_, hidden / n_head_}).transpose(1, 2);
  };
  const std::vector<torch::Tensor> qkv = c_attn->forward(x).split(hidden, /*dim=*/2);
  torch::Tensor y = at::scaled_dot_product_attention(
      heads(qkv[0]), heads(qkv[1]), heads(qkv[2]), /*attn_mask=*/{},
      is_training() ? attn_pdrop_ : 0.0, /*is_causal=*/true);
  y = y.transpose(1, 2).reshape({batch, time, hidden});
  return resid_dropout->forward(c_proj->forward(y));
}

GPT2MLPImpl::GPT2MLPImpl(const GPT2Config& config)
    : c_fc(register_module("c_fc", nn::Linear(config.n_embd, 4 * config.n_embd))),
      c_proj(register_module("c_proj", nn::Linear(4 * config.n_embd, config.n_embd))),
      dropout(register_module("dropout", nn::Dropout(config.resid_pdrop))) {}

torch::Tensor GPT2MLPImpl::forward(const torch::Tensor& x) {
  return dropout->forward(c_proj->forward(at::gelu(c_fc->forward(x), "tanh")));
}

GPT2BlockImpl::GPT2BlockImpl(const GPT2Config& config)
    : ln_1(register_module("ln_1", layer_norm(config))),
      attn(register_module("attn", GPT2Attention(config))),
      ln_2(register_module("ln_2", layer_norm(config))),
      mlp(register_module("mlp", GPT2MLP(config))) {}

torch::Tensor GPT2BlockImpl::forward(torch::Tensor x) {
  x = x + attn->forward(ln_1->forward(x));
  return x + mlp->forward(ln_2->forward(x));
}

GPT2ModelImpl::GPT2ModelImpl(const GPT2Config& config)
    : wte(register_module("wte", nn::Embedding(config.vocab_size, config.n_embd))),
      wpe(register_module("wpe", nn::Embedding(config.n_positions, config.n_embd))),
      drop(register_module("drop", nn::Dropout(config.embd_pdrop))),
      h(register_module("h", nn::ModuleList())),
      ln_f(register_module("ln_f", layer_norm(config))) {
  for (std::int64_t i = 0; i < config.n_layer; ++i) h->push_back(GPT2Block(config));
}

torch::Tensor GPT2ModelImpl::forward(const torch::Tensor& ids) {
  const torch::Tensor positions = torch::arange(ids.size(1), ids.options());
  torch::Tensor x = drop->forward(wte->forward(ids) + wpe->forward(positions));
  for (const auto& block : *h) x = block->as<GPT2Block>()->forward(x);
  return ln_f->forward(x);
}

GPT2LMHeadModelImpl::GPT2LMHeadModelImpl(const GPT2Config& config)
    : transformer(register_module("transformer", GPT2Model(config))),
      lm_head(register_module(
          "lm_head", nn::Linear(nn::LinearOptions(config.n_embd, config.vocab_size).bias(false)))),
      n_positions_(config.n_positions) {
  lm_head->weight = transformer->wte->weight;
  initialize_weights(config);
}

void GPT2LMHeadModelImpl::initialize_weights(const GPT2Config& config) {
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

torch::Tensor GPT2LMHeadModelImpl::forward(const torch::Tensor& ids) {
  return lm_head->forward(transformer->forward(ids));
}

torch::Tensor GPT2LMHeadModelImpl::generate(torch::Tensor ids, std::int64_t count,
                                            const GenerateOptions& how) {
  torch::NoGradGuard no_grad;
  const bool was_training = is_training();
  eval();
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t first = std::max<std::int64_t>(0, ids.size(1) - n_positions_);
    torch::Tensor logits = forward(ids.slice(/*dim=*/1, first)).select(/*dim=*/1, -1);
    torch::Tensor next;
    if (how.temperature == 0) {
      next = logits.argmax(-1, /*keepdim=*/true);
    } else {
      logits = logits / how.temperature;
      if (how.top_k > 0 && how.top_k < logits.size(-1)) {
        const torch::Tensor smallest =
            std::get<0>(logits.topk(how.top_k, -1)).narrow(-1, how.top_k - 1, 1);
        logits = logits.masked_fill(logits < smallest, -INFINITY);
      }
      next = torch::multinomial(logits.softmax(-1), 1, /*replacement=*/false, how.generator);
    }
    ids = torch::cat({ids, next}, 1);
  }
  train(was_training);
  return ids;
}

}  // namespace gpt2
