#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "oslo_cpp/model/model_chunks.h"

namespace oslo {

/// A chain of layers for pipeline stages: a torch::nn::Sequential, whole, with how many stages each
/// rank is to have of it.
class PipelineModelImpl : public torch::nn::SequentialImpl, public ModelChunks {
 public:
  explicit PipelineModelImpl(int num_model_chunks = 1);
  int num_model_chunks() const override { return chunks_; }
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;

 private:
  int chunks_;
};
TORCH_MODULE(PipelineModel);

/// Colossal-AI's builder, of a registered ModelFromConfig: `config` has its "type" and arguments,
/// and the layers are those of its `layers_cfg`. `num_chunks` stages a rank.
///
///     auto model = oslo::build_pipeline_model_from_cfg({{"type", "MyModel"}, {"width", 5}}, 1);
///     auto [engine, loader] = oslo::initialize(model, optimizer, criterion, loader, config);
///
/// Colossal-AI returns a rank's own layers. This returns all, the same on every rank, and
/// `initialize` gives each rank its stages: so optimizer and checkpoint are those of the whole
/// model, and one config runs it on any number of ranks. No communication.
///
/// Throws for a type that is not registered, for one that is no ModelFromConfig, or has a forward
/// of its own, which the chain would not run; and as build_layer does.
PipelineModel build_pipeline_model_from_cfg(const nlohmann::json& config, int num_chunks = 1);

/// The same of a chain that there is already, whose layers it shares.
PipelineModel build_pipeline_model(const torch::nn::Sequential& layers, int num_model_chunks = 1);

}  // namespace oslo
