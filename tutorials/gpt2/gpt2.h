#pragma once

#include <torch/nn.h>

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>

/// GPT-2 (Radford et al. 2019) as one would write it for one device. Module and parameter names are
/// those of Hugging Face's GPT2LMHeadModel; linear layers are torch::nn::Linear, so their weights
/// are [out, in], the transpose of Hugging Face's Conv1D.
namespace gpt2 {

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

  nlohmann::json to_json() const;

  /// Reads the keys above; others (config.json has many) are ignored.
  /// Throws std::runtime_error if a key is missing or the activation is not "gelu_new".
  static GPT2Config from_json(const nlohmann::json& json);
};

class GPT2AttentionImpl : public torch::nn::Module {
 public:
  explicit GPT2AttentionImpl(const GPT2Config& config);
  torch::Tensor forward(const torch::Tensor& x);  ///< [batch, time, n_embd] to the same

  torch::nn::Linear c_attn, c_proj;
  torch::nn::Dropout resid_dropout;

 private:
  std::int64_t n_head_;
  double attn_pdrop_;
};
TORCH_MODULE(GPT2Attention);

class GPT2MLPImpl : public torch::nn::Module {
 public:
  explicit GPT2MLPImpl(const GPT2Config& config);
  torch::Tensor forward(const torch::Tensor& x);

  torch::nn::Linear c_fc, c_proj;
  torch::nn::Dropout dropout;
};
TORCH_MODULE(GPT2MLP);

class GPT2BlockImpl : public torch::nn::Module {
 public:
  explicit GPT2BlockImpl(const GPT2Config& config);
  torch::Tensor forward(torch::Tensor x);

  torch::nn::LayerNorm ln_1;
  GPT2Attention attn;
  torch::nn::LayerNorm ln_2;
  GPT2MLP mlp;
};
TORCH_MODULE(GPT2Block);

class GPT2ModelImpl : public torch::nn::Module {
 public:
  explicit GPT2ModelImpl(const GPT2Config& config);
  torch::Tensor forward(const torch::Tensor& ids);  ///< [batch, time] to [batch, time, n_embd]

  torch::nn::Embedding wte, wpe;
  torch::nn::Dropout drop;
  torch::nn::ModuleList h;
  torch::nn::LayerNorm ln_f;
};
TORCH_MODULE(GPT2Model);

struct GenerateOptions {
  double temperature = 1.0;  ///< 0: always the likeliest token
  std::int64_t top_k = 0;    ///< sample among the k likeliest; 0: among all
  std::optional<at::Generator> generator;
};

class GPT2LMHeadModelImpl : public torch::nn::Module {
 public:
  explicit GPT2LMHeadModelImpl(const GPT2Config& config);

  /// Token ids [batch, time], time at most n_positions, to logits [batch, time, vocab_size].
  torch::Tensor forward(const torch::Tensor& ids);

  /// Appends `count` sampled tokens to each row of `ids` [batch, time].
  torch::Tensor generate(torch::Tensor ids, std::int64_t count, const GenerateOptions& how = {});

  GPT2Model transformer;
  torch::nn::Linear lm_head;  ///< its weight is wte's

 private:
  void initialize_weights(const GPT2Config& config);
  std::int64_t n_positions_;
};
TORCH_MODULE(GPT2LMHeadModel);

}  // namespace gpt2
