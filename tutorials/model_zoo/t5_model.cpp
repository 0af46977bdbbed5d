// T5: the second half of a block from the first.
#include "model_cfg.h"
#include "t5.h"
#include "token_data.h"
#include "token_loss.h"
#include "zoo_models.h"

namespace zoo {
namespace {

/// T5 has positions of any distance: what a block may have is what one trains on.
constexpr int64_t kLongest = 512;

oslo::TrainingData halves(const nlohmann::json& section, const std::string& path,
                          const t5::T5Config& config, int64_t seed) {
  const TokenData data = token_data(section, path, config.vocab_size, kLongest, /*more=*/0, seed);
  const int64_t start = config.decoder_start_token_id;
  return {data.size, [data, start](int64_t number) -> std::vector<torch::Tensor> {
            const torch::Tensor block = data.block(number);
            const int64_t first = block.numel() / 2, rest = block.numel() - first;
            const torch::Tensor ids = block.narrow(0, 0, first),
                                told = block.narrow(0, first, rest);
            const torch::Tensor shifted =
                torch::cat({torch::full({1}, start, torch::kLong), told.narrow(0, 0, rest - 1)});
            return {ids, torch::ones_like(ids), shifted, told};
          }};
}

}  // namespace

oslo::TrainedModel make_t5(const oslo::ModelRequest& request) {
  const auto config = read_cfg<t5::T5Config>(request.cfg, {{"hidden_layers", "num_layers"},
                                                           {"hidden_size", "d_model"},
                                                           {"head_size", "d_kv"},
                                                           {"intermediate_size", "d_ff"},
                                                           {"num_attention_heads", "num_heads"}});
  t5::T5ForConditionalGeneration model(config);
  oslo::TrainedModel trained;
  trained.model = model.ptr();
  trained.forward = [model](const std::vector<torch::Tensor>& batch) mutable {
    return model->forward(batch[0], batch[1], batch[2]);
  };
  trained.criterion = token_loss;
  trained.train = halves(request.train, "dataloader.train", config, request.seed);
  trained.test = halves(request.test, "dataloader.test", config, request.seed + 1);
  return trained;
}

}  // namespace zoo
