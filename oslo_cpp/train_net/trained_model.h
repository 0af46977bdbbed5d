#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "oslo_cpp/engine/counted_loss.h"
#include "oslo_cpp/initialize/initialize.h"

namespace oslo {

/// Samples by their number, each the tensors of one row without the batch's dimension: what the
/// model reads, and behind it what the criterion compares with. A function of the number alone, so
/// that every rank reads the rows that it needs, and a resumed run the same ones again.
struct TrainingData {
  int64_t size = 0;
  std::function<std::vector<at::Tensor>(int64_t number)> sample;
};

/// What `oslo train` trains: a model as its author wrote it, what it makes of a batch, and of what
/// data.
struct TrainedModel {
  std::shared_ptr<torch::nn::Module> model;
  /// From the tensors of a batch, each [rows, ...], to the model's output. It is run on shapes
  /// first (InitializeOptions::example_inputs).
  std::function<at::Tensor(const std::vector<at::Tensor>& batch)> forward;
  /// The sum of the loss, and how many elements it is of: a step is of the mean over all of them.
  std::function<CountedLoss(const at::Tensor& output, const std::vector<at::Tensor>& batch)>
      criterion;
  TrainingData train;
  TrainingData test = {};  ///< of size 0: there is none
  /// What else `initialize` is told: policies, stages. World and example are replaced.
  InitializeOptions how = {};
};

/// What a model is made from: the config's "model.cfg", "dataloader.train" and "dataloader.test"
/// (null where it has none), and "train.seed", for what data draw. The default generator is seeded.
struct ModelRequest {
  nlohmann::json cfg, train, test;
  int64_t seed = 0;
};

/// By the name that the config's "model.name" says. A maker throws `ConfigError` for a cfg that it
/// does not understand: with the key, the value and the nearest name.
using TrainedModels = std::map<std::string, std::function<TrainedModel(const ModelRequest&)>>;

}  // namespace oslo

/// Makes a shared library one whose models `oslo train --model-library ./libnet.so` can train, once
/// in one of its files:
///
///     OSLO_TRAINED_MODELS({"net", [](const oslo::ModelRequest& request) {
///       Net net(request.cfg.value("width", 16));
///       oslo::TrainedModel trained;
///       trained.model = net.ptr();
///       ...
///       return trained;
///     }})
#define OSLO_TRAINED_MODELS(...)                                              \
  extern "C" __attribute__((visibility("default"))) void oslo_trained_models( \
      ::oslo::TrainedModels* models) {                                        \
    *models = ::oslo::TrainedModels{__VA_ARGS__};                             \
  }
