// BERT: masked tokens.
#include "bert.h"
#include "draw_weights.h"
#include "model_cfg.h"
#include "token_data.h"
#include "token_loss.h"
#include "zoo_models.h"

namespace zoo {
namespace {

/// Ids, types, which tokens there are, and labels: -100 where nothing is to be told.
std::vector<torch::Tensor> masked(const torch::Tensor& tokens, int64_t vocab_size, Draws draws) {
  const torch::Tensor ids = tokens.clone(), labels = torch::full_like(tokens, -100);
  auto* const id = ids.mutable_data_ptr<int64_t>();
  auto* const label = labels.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < tokens.numel(); ++i) {
    if (draws.share() >= 0.15) continue;
    label[i] = id[i];
    const double how = draws.share();
    if (how < 0.8) {
      id[i] = vocab_size - 1;
    } else if (how < 0.9) {
      id[i] = draws.below(vocab_size - 1);
    }
  }
  return {ids, torch::zeros_like(ids), torch::ones_like(ids), labels};
}

oslo::TrainingData masked_tokens(const nlohmann::json& section, const std::string& path,
                                 const bert::BertConfig& config, int64_t seed) {
  const TokenData data = token_data(section, path, config.vocab_size - 1,
                                    config.max_position_embeddings, /*more=*/0, seed);
  const int64_t words = config.vocab_size;
  return {data.size, [data, words, seed](int64_t number) {
            return masked(data.block(number), words, Draws(~seed, number));
          }};
}

}  // namespace

oslo::TrainedModel make_bert(const oslo::ModelRequest& request) {
  const auto config =
      read_cfg<bert::BertConfig>(request.cfg, {{"hidden_layers", "num_hidden_layers"},
                                               {"num_tokentypes", "type_vocab_size"},
                                               {"layernorm_eps", "layer_norm_eps"}});
  bert::BertForMaskedLM model(config);
  draw_weights(*model);
  oslo::TrainedModel trained;
  trained.model = model.ptr();
  trained.forward = [model](const std::vector<torch::Tensor>& batch) mutable {
    return model->forward(batch[0], batch[1], batch[2]);
  };
  trained.criterion = token_loss;
  trained.train = masked_tokens(request.train, "dataloader.train", config, request.seed);
  trained.test = masked_tokens(request.test, "dataloader.test", config, request.seed + 1);
  return trained;
}

}  // namespace zoo
