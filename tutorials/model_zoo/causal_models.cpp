// GPT-2 and Llama: next tokens.
#include "draw_weights.h"
#include "gpt2.h"
#include "llama.h"
#include "model_cfg.h"
#include "token_data.h"
#include "token_loss.h"
#include "zoo_models.h"

namespace zoo {
namespace {

oslo::TrainingData next_tokens(const TokenData& data) {
  return {data.size, [data](int64_t number) -> std::vector<torch::Tensor> {
            const torch::Tensor block = data.block(number);
            return {block.narrow(0, 0, data.seq_length), block.narrow(0, 1, data.seq_length)};
          }};
}

template <typename Model, typename Config>
oslo::TrainedModel causal(const oslo::ModelRequest& request, Model model, const Config& config,
                          int64_t longest) {
  oslo::TrainedModel trained;
  trained.model = model.ptr();
  trained.forward = [model](const std::vector<torch::Tensor>& batch) mutable {
    return model->forward(batch[0]);
  };
  trained.criterion = token_loss;
  trained.train = next_tokens(token_data(request.train, "dataloader.train", config.vocab_size,
                                         longest, /*more=*/1, request.seed));
  trained.test = next_tokens(token_data(request.test, "dataloader.test", config.vocab_size, longest,
                                        /*more=*/1, request.seed + 1));
  return trained;
}

}  // namespace

oslo::TrainedModel make_gpt2(const oslo::ModelRequest& request) {
  const auto config = read_cfg<gpt2::GPT2Config>(request.cfg, {{"hidden_layers", "n_layer"},
                                                               {"hidden_size", "n_embd"},
                                                               {"num_attention_heads", "n_head"},
                                                               {"max_seq_length", "n_positions"}});
  return causal(request, gpt2::GPT2LMHeadModel(config), config, config.n_positions);
}

oslo::TrainedModel make_llama(const oslo::ModelRequest& request) {
  const auto config = read_cfg<llama::LlamaConfig>(
      request.cfg,
      {{"hidden_layers", "num_hidden_layers"}, {"max_seq_length", "max_position_embeddings"}});
  llama::LlamaForCausalLM model(config);
  draw_weights(*model);
  return causal(request, model, config, config.max_position_embeddings);
}

}  // namespace zoo
