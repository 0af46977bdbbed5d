// LiBai's BERT of 24 layers, by a LiBai configuration, as a plan: which layers each pipeline stage
// has, what they take, how their weights are cut beside. No rank is started and nothing is trained:
//
//   oslo plan -n 8 -- ./bert_plan
//   oslo plan -n 8 -- ./bert_plan --set balance_stages=time
//   oslo plan -n 8 -- ./bert_plan --hidden 1024          # BERT-large, as LiBai trains it: 1.4 GB
//
// Its first lines:
//   8 ranks: pipeline 4 x tensor 2
//   ...
//   pipeline of 4 stages, by LiBai's rule, then as modules were given stages
//     stage  layers                      parameters  share of time
//     0      encoders.0 to encoders.5    ...
#include <oslo_cpp/oslo.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>
#include <vector>

#include "bert.h"

namespace {

constexpr const char* kConfig = R"({"train": {"dist": {
    "data_parallel_size": 1, "tensor_parallel_size": 2, "pipeline_parallel_size": 4,
    "pipeline_num_layers": 24}}})";

/// As LiBai's BertForPreTraining::set_pipeline_stage_id. Without it the stages are the same: what
/// it says is what the library does with embeddings, layers, final norms and poolers anyway.
oslo::StageAssignment set_pipeline_stage_id(const bert::BertForPreTraining& model) {
  oslo::StageAssignment stages;
  stages.set_pipeline_stage_id(model->embeddings, 0);
  for (size_t i = 0; i < model->layers->size(); ++i) {
    stages.set_layer_idx(model->layers->ptr(i), static_cast<int>(i));
  }
  stages.set_layer_idx(model->final_layernorm, -1);
  stages.set_layer_idx(model->pooler, -1);
  stages.set_layer_idx(model->transform, -1);
  stages.set_layer_idx(model->next_sentence, -1);
  return stages;
}

void plan(const bert::BertConfig& shape, const std::vector<std::string>& settings) {
  oslo::Config config = oslo::Config::parse(kConfig);
  for (const std::string& setting : settings) config.set(setting);
  torch::manual_seed(0);
  bert::BertForPreTraining model(shape);
  oslo::InitializeOptions how;
  how.stages = set_pipeline_stage_id(model);
  how.example_inputs = [&] {
    const auto tokens = torch::ones({4, 128}, torch::kLong);
    model->forward(tokens, torch::zeros_like(tokens));
  };
  const oslo::ParallelModel parallel = oslo::initialize(model, config, how);
  // Under `oslo plan` the program has ended here; under `oslo run` there are ranks.
  if (parallel.mpu().world().rank() == 0) std::cout << parallel.plan().to_string();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("The plan of BERT by LiBai's configuration; run it by `oslo plan -n 8`");
  bert::BertConfig shape;
  shape.hidden = 256;
  std::vector<std::string> settings;
  app.add_option("--hidden", shape.hidden)->capture_default_str();
  app.add_option("--layers", shape.layers)->capture_default_str();
  app.add_option("--heads", shape.heads)->capture_default_str();
  app.add_option("--set", settings,
                 "Changes one entry of the configuration, e.g. "
                 "train.dist.pipeline_parallel_size=2");
  CLI11_PARSE(app, argc, argv);
  try {
    plan(shape, settings);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
