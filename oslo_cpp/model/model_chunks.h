#pragma once

#include <torch/nn/module.h>

#include "oslo_cpp/config/config.h"

namespace oslo {

/// Of a model that says how many stages each pipeline rank is to have of it. `initialize` follows
/// it where the config says nothing of "num_model_chunks".
class ModelChunks {
 public:
  virtual ~ModelChunks() = default;
  virtual int num_model_chunks() const = 0;
};

/// The config with the stages a rank that the model was built for; of any other model, and without
/// a pipeline, as it is. Throws `ConfigError` where it says another number.
Config with_chunks_of(const torch::nn::Module& model, const Config& config);

}  // namespace oslo
