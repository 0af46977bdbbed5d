#include "oslo_cpp/registry/model_from_config.h"

#include <utility>

#include "mpu/base/error.h"
#include "oslo_cpp/registry/module_table.h"

namespace oslo {

torch::nn::Sequential build_layers(const nlohmann::json& layers_cfg) {
  OSLO_CHECK_AS(config, layers_cfg.is_array() && !layers_cfg.empty(), "layers_cfg is ",
                layers_cfg.dump(),
                "; make it a list of layers, [{\"type\": \"Linear\", ...}, ...]");
  torch::nn::Sequential chain;
  for (const nlohmann::json& entry : layers_cfg) chain->push_back(build_layer(entry));
  return chain;
}

void ModelFromConfig::build_from_cfg() {
  OSLO_CHECK(layers.is_empty(), "build_from_cfg: the layers are built already; call it once");
  torch::nn::Sequential built = build_layers(layers_cfg);
  layers = register_module("layers", std::move(built));
  init_weights();
}

at::Tensor ModelFromConfig::forward(const at::Tensor& input) {
  OSLO_CHECK(!layers.is_empty(),
             "a ModelFromConfig has no layers yet: make it by oslo::build_model(config), or call "
             "build_from_cfg() behind its constructor");
  return layers->forward(input);
}

}  // namespace oslo
