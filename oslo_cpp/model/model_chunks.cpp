#include "oslo_cpp/model/model_chunks.h"

#include <nlohmann/json.hpp>
#include <string>

#include "mpu/base/error.h"

namespace oslo {
namespace {

/// The override that sets it, in the config's own words. Colossal-AI's pipeline may be a number.
std::string override_of(const Config& config, int chunks) {
  const ConfigValues& values = config.values();
  if (values.dialect == ConfigDialect::oslo) {
    return c10::str("model_parallelism.num_model_chunks=", chunks);
  }
  if (values.dialect == ConfigDialect::libai) {
    return c10::str("train.dist.num_model_chunks=", chunks);
  }
  const nlohmann::json document = config.to_json();
  if (document["parallel"]["pipeline"].is_object()) {
    return c10::str("parallel.pipeline.num_model_chunks=", chunks);
  }
  return c10::str("parallel.pipeline={\"size\": ", values.pipeline_parallel_size,
                  ", \"num_model_chunks\": ", chunks, "}");
}

}  // namespace

Config with_chunks_of(const torch::nn::Module& model, const Config& config) {
  const auto* of = dynamic_cast<const ModelChunks*>(&model);
  if (of == nullptr || config.values().pipeline_parallel_size == 1) return config;
  const int chunks = of->num_model_chunks();
  const auto& said = config.values().num_model_chunks;
  OSLO_CHECK_AS(config, !said || *said == chunks, "'num_model_chunks' = ", said.value_or(0),
                " in the config, and the model was built for ", chunks,
                " stages a rank (build_pipeline_model, build_pipeline_model_from_cfg); say the "
                "same in both");
  if (said || chunks == 1) return config;
  Config changed = config;
  changed.set(override_of(config, chunks));
  return changed;
}

}  // namespace oslo
