#include "oslo_cpp/registry/pipeline_model.h"

#include <nlohmann/json.hpp>

#include "mpu/base/error.h"
#include "oslo_cpp/registry/model_from_config.h"
#include "oslo_cpp/registry/module_table.h"

namespace oslo {

PipelineModelImpl::PipelineModelImpl(int num_model_chunks) : chunks_(num_model_chunks) {
  OSLO_CHECK_AS(config, chunks_ >= 1, "num_model_chunks = ", chunks_,
                ": a rank has at least 1 stage");
}

std::shared_ptr<torch::nn::Module> PipelineModelImpl::clone(
    const std::optional<torch::Device>& device) const {
  auto copy = std::make_shared<PipelineModelImpl>(chunks_);
  for (const torch::nn::AnyModule& layer : *this) copy->push_back(layer.clone(device));
  return copy;
}

PipelineModel build_pipeline_model(const torch::nn::Sequential& layers, int num_model_chunks) {
  OSLO_CHECK(!layers.is_empty() && !layers->is_empty(),
             "build_pipeline_model: the model has no layers");
  PipelineModel model(num_model_chunks);
  // Under the names that they have.
  const auto named = layers->named_children();
  auto layer = layers->begin();
  for (const auto& item : named) model->push_back(item.key(), *layer++);
  return model;
}

PipelineModel build_pipeline_model_from_cfg(const nlohmann::json& config, int num_chunks) {
  OSLO_CHECK_AS(config, config.is_object() && config.contains("type") && config["type"].is_string(),
                "build_pipeline_model_from_cfg: ", config.dump(),
                "; give an object with the name of a class, {\"type\": \"MyModel\", ...}");
  const std::string type = config["type"];
  const RegisteredModule* registered = find_module(type);
  const auto model = build_model(config);
  const auto layered = std::dynamic_pointer_cast<ModelFromConfig>(model);
  OSLO_CHECK_AS(config, registered != nullptr && layered != nullptr,
                "build_pipeline_model_from_cfg: '", type,
                "' is no oslo::ModelFromConfig, so that nobody knows its layers; derive it from "
                "that, or hand oslo::build_model(config) to initialize, which divides any model");
  OSLO_CHECK_AS(config, !registered->own_forward, "build_pipeline_model_from_cfg: '", type,
                "' has a forward of its own, and a pipeline of its layers_cfg runs one layer after "
                "the other; leave the forward out, or hand oslo::build_model(config) to "
                "initialize, which divides any model");
  return build_pipeline_model(layered->layers, num_chunks);
}

}  // namespace oslo
