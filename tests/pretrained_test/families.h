#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/formats/tensors/state_dict.h"
#include "tests/support/seeded.h"
#include "tutorials/models/bert.h"
#include "tutorials/models/gpt2.h"
#include "tutorials/models/llama.h"
#include "tutorials/models/t5.h"
#include "tutorials/models/vit.h"

// The tutorials' models as one list: made from a config.json, run on Hugging Face's inputs.
namespace oslo::pretrained_test {

using ModulePtr = std::shared_ptr<torch::nn::Module>;

struct Family {
  std::string name;
  std::function<ModulePtr(const nlohmann::json& config)> make;
  /// A config of this family with the sizes of transformers_models.py.
  nlohmann::json config;
  std::function<torch::Tensor(torch::nn::Module&, const StateDict& inputs)> forward;
  /// Null where the model generates nothing.
  std::function<torch::Tensor(torch::nn::Module&, const StateDict& inputs, int64_t count)> generate;
};

template <typename Holder, typename Config>
ModulePtr make_model(const nlohmann::json& config) {
  auto model = test::make_seeded(7, [&] { return Holder(Config::from_json(config)); });
  model->eval();
  return model.ptr();
}

template <typename Holder>
typename Holder::ContainedType& as(torch::nn::Module& module) {
  return dynamic_cast<typename Holder::ContainedType&>(module);
}

/// Always the likeliest token.
inline generation::GenerateOptions greedy() {
  generation::GenerateOptions how;
  how.temperature = 0;
  return how;
}

template <typename Model, typename Config>
Family decoder(const std::string& name, const Config& config) {
  return {name, make_model<Model, Config>, config.to_json(),
          [](torch::nn::Module& model, const StateDict& in) {
            return as<Model>(model).forward(in.at("input_ids"));
          },
          [](torch::nn::Module& model, const StateDict& in, int64_t count) {
            return as<Model>(model).generate(in.at("input_ids"), count, greedy());
          }};
}

inline Family gpt2_family() {
  gpt2::GPT2Config config;
  config.vocab_size = 53;
  config.n_positions = 19;
  config.n_embd = 12;
  config.n_layer = 2;
  config.n_head = 3;
  return decoder<gpt2::GPT2LMHeadModel>("gpt2", config);
}

inline Family llama_family() {
  llama::LlamaConfig config;
  config.vocab_size = 53;
  config.hidden_size = 24;
  config.intermediate_size = 22;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 6;
  config.num_key_value_heads = 2;
  config.head_dim = 4;
  config.max_position_embeddings = 32;
  return decoder<llama::LlamaForCausalLM>("llama", config);
}

/// Llama 3.1's positions: waves of 6.3, 16.7, 44.4 and 118.2 tokens, of which two stay, one lies
/// between and one is slowed down.
inline Family llama3_family() {
  llama::LlamaConfig config = llama::LlamaConfig::from_json(llama_family().config);
  config.head_dim = 8;
  config.max_position_embeddings = 300;
  config.rope.theta = 50.0;
  config.rope.scaling = {.factor = 3.5,
                         .low_freq_factor = 1.0,
                         .high_freq_factor = 4.0,
                         .original_max_position_embeddings = 97};
  return decoder<llama::LlamaForCausalLM>("llama3", config);
}

inline Family bert_family() {
  using Model = bert::BertForMaskedLM;
  bert::BertConfig config;
  config.vocab_size = 53;
  config.hidden_size = 12;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 3;
  config.intermediate_size = 22;
  config.max_position_embeddings = 16;
  return {"bert", make_model<Model, bert::BertConfig>, config.to_json(),
          [](torch::nn::Module& model, const StateDict& in) {
            return as<Model>(model).forward(in.at("input_ids"), in.at("token_type_ids"),
                                            in.at("attention_mask"));
          },
          nullptr};
}

inline Family t5_family(const std::string& name, bool gated) {
  using Model = t5::T5ForConditionalGeneration;
  t5::T5Config config;
  config.vocab_size = 53;
  config.d_model = 12;
  config.d_kv = 5;
  config.d_ff = 22;
  config.num_layers = config.num_decoder_layers = 2;
  config.num_heads = 3;
  config.relative_attention_num_buckets = 8;
  config.relative_attention_max_distance = 16;
  config.gated = gated;
  return {name, make_model<Model, t5::T5Config>, config.to_json(),
          [](torch::nn::Module& model, const StateDict& in) {
            return as<Model>(model).forward(in.at("input_ids"), in.at("attention_mask"),
                                            in.at("decoder_input_ids"));
          },
          [](torch::nn::Module& model, const StateDict& in, int64_t count) {
            return as<Model>(model).generate(in.at("input_ids"), in.at("attention_mask"), count,
                                             greedy());
          }};
}

inline Family vit_family() {
  using Model = vit::ViTForImageClassification;
  vit::ViTConfig config;
  config.hidden_size = 12;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 3;
  config.intermediate_size = 22;
  config.image_size = 8;
  config.patch_size = 4;
  config.num_labels = 7;
  return {"vit", make_model<Model, vit::ViTConfig>, config.to_json(),
          [](torch::nn::Module& model, const StateDict& in) {
            return as<Model>(model).forward(in.at("pixel_values"));
          },
          nullptr};
}

inline std::vector<Family> families() {
  return {gpt2_family(), llama_family(),         llama3_family(),
          bert_family(), t5_family("t5", false), t5_family("t5-gated", true),
          vit_family()};
}

/// What each family takes, without Python.
inline StateDict some_inputs(const std::string& family) {
  const auto tokens = [](int64_t rows, int64_t time, int64_t step) {
    return torch::arange(rows * time).mul(step).remainder(52).add(1).view({rows, time});
  };
  if (family == "vit")
    return {{"pixel_values", torch::linspace(-1, 1, 3 * 3 * 64).view({3, 3, 8, 8})}};
  StateDict inputs{{"input_ids", tokens(3, 9, 7)}};
  torch::Tensor mask = torch::ones({3, 9}, torch::kLong);
  mask.index_put_({1, torch::indexing::Slice(6)}, 0);
  inputs.insert("attention_mask", mask);
  inputs.insert("token_type_ids", tokens(3, 9, 5).remainder(2));
  inputs.insert("decoder_input_ids", tokens(3, 5, 11));
  return inputs;
}

}  // namespace oslo::pretrained_test
