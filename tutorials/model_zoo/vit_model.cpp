// The vision transformer: classes of pictures.
#include <mpu/base/error.h>

#include "draw_weights.h"
#include "model_cfg.h"
#include "token_data.h"
#include "token_loss.h"
#include "vit.h"
#include "zoo_models.h"

namespace zoo {
namespace {

oslo::TrainingData pictures(const nlohmann::json& section, const std::string& path,
                            const vit::ViTConfig& config, int64_t seed, int64_t of_patterns) {
  if (section.is_null()) return {};
  check_keys(section, path, {"dataset", "samples"});
  const auto kind = value_or<std::string>(section, path, "dataset", "synthetic");
  OSLO_CHECK_AS(config, kind == "synthetic", "'", path, ".dataset' is '", kind,
                "'; pictures are 'synthetic'");
  const auto samples = value_or<int64_t>(section, path, "samples", 1000);
  OSLO_CHECK_AS(config, samples > 0, "'", path, ".samples': give at least 1");
  const std::vector<int64_t> shape = {config.num_channels, config.image_size, config.image_size};
  const int64_t classes = config.num_labels;
  return {samples, [=](int64_t number) -> std::vector<torch::Tensor> {
            const int64_t label = Draws(seed, number).below(classes);
            Draws pattern(of_patterns, label), noise(~seed, number);
            const torch::Tensor picture = torch::empty(shape);
            auto* const out = picture.mutable_data_ptr<float>();
            for (int64_t i = 0; i < picture.numel(); ++i) {
              out[i] = static_cast<float>(pattern.share() + noise.share() - 1);
            }
            return {picture, torch::full({}, label, torch::kLong)};
          }};
}

}  // namespace

oslo::TrainedModel make_vit(const oslo::ModelRequest& request) {
  nlohmann::json cfg = request.cfg;
  // Hugging Face's has a name for each class.
  nlohmann::json classes;
  for (const char* name : {"num_labels", "num_classes"}) {
    if (!cfg.contains(name)) continue;
    classes = value_or<int64_t>(cfg, "model.cfg", name, 2);
    cfg.erase(name);
  }
  if (!classes.is_null()) {
    vit::ViTConfig names;
    names.num_labels = classes.get<int64_t>();
    cfg["id2label"] = names.to_json().at("id2label");
  }
  const auto config = read_cfg<vit::ViTConfig>(cfg, {{"hidden_layers", "num_hidden_layers"},
                                                     {"depth", "num_hidden_layers"},
                                                     {"embed_dim", "hidden_size"},
                                                     {"num_heads", "num_attention_heads"},
                                                     {"img_size", "image_size"},
                                                     {"in_chans", "num_channels"}});
  vit::ViTForImageClassification model(config);
  draw_weights(*model);
  oslo::TrainedModel trained;
  trained.model = model.ptr();
  trained.forward = [model](const std::vector<torch::Tensor>& batch) mutable {
    return model->forward(batch[0]);
  };
  trained.criterion = token_loss;
  trained.train = pictures(request.train, "dataloader.train", config, request.seed, request.seed);
  trained.test = pictures(request.test, "dataloader.test", config, request.seed + 1, request.seed);
  return trained;
}

}  // namespace zoo
