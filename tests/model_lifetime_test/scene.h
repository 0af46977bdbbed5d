#pragma once

#include <gtest/gtest.h>

#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallelizers/pipeline/schedule/order/kinds.h"
#include "tests/support/seeded.h"

// A model, and what may be done with it while it is parallel.
namespace oslo::lifetime_test {

using test::make_seeded;
using torch::Tensor;

constexpr int64_t kWords = 11, kWidth = 6, kRows = 12;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    words = register_module(
        "words", torch::nn::Embedding(torch::nn::EmbeddingOptions(kWords, kWidth).padding_idx(9)));
    up = register_module("up", torch::nn::Linear(kWidth, 9));
    down = register_module("down", torch::nn::Linear(9, kWidth));
    norm = register_module("norm", torch::nn::BatchNorm1d(kWidth));
    dropout = register_module("dropout", torch::nn::Dropout(0.1));
    head = register_module("head", torch::nn::Linear(kWidth, kWords));
    scale = register_parameter("scale", torch::ones({3, kWidth}).t());  // a leaf that is a view
  }
  Tensor forward(const Tensor& ids) {
    Tensor x = words->forward(ids) * scale.sum(1);
    x = norm->forward(x + down->forward(dropout->forward(torch::gelu(up->forward(x), "tanh"))));
    return head->forward(x);
  }
  torch::nn::Embedding words = nullptr;
  torch::nn::Linear up = nullptr, down = nullptr, head = nullptr;
  torch::nn::BatchNorm1d norm = nullptr;
  torch::nn::Dropout dropout = nullptr;
  Tensor scale;
};
TORCH_MODULE(Net);

inline Tensor ids() {
  return torch::arange(kRows) % kWords;
}

inline Tensor loss_of(const Tensor& logits, const Tensor& labels) {
  return torch::nn::functional::cross_entropy(logits, labels);
}

struct Grid {
  int data = 1, tensor = 1, pipeline = 1;
  int size() const { return data * tensor * pipeline; }
};

/// What may not outlive its model.
struct Watch {
  std::vector<std::weak_ptr<Group>> groups;
  std::vector<std::weak_ptr<const Mesh>> meshes;
  std::vector<c10::weak_intrusive_ptr<c10d::ProcessGroup>> carriers;

  void add(const MPU& mpu) {
    for (const auto& group : mpu.groups()) {
      groups.emplace_back(group);
      carriers.emplace_back(group->process_group());
    }
    meshes.emplace_back(mpu.tensor_mesh());
  }
  int64_t left() const {
    const auto alive = [](const auto& weak) { return !weak.expired(); };
    return std::count_if(groups.begin(), groups.end(), alive) +
           std::count_if(meshes.begin(), meshes.end(), alive) +
           std::count_if(carriers.begin(), carriers.end(), alive);
  }
};

struct Scene {
  World world;
  Grid grid;
  std::vector<std::string> settings;
  Watch& watch;
  bool example = false;

  InitializeOptions how(const std::function<void()>& forward = {}) const {
    InitializeOptions options;
    options.world = world;
    if (example) options.example_inputs = forward;
    return options;
  }
  Config config() const {
    Config config = Config::parse(
        c10::str(R"({"model_parallelism": {"enable": true, "tensor_parallel_size": )", grid.tensor,
                 R"(, "pipeline_parallel_size": )", grid.pipeline, "}}"));
    for (const std::string& setting : settings) config.set(setting);
    return config;
  }
  ParallelModel parallel(Net& model) const {
    ParallelModel made = initialize(model, config(), how([&] { model->forward(ids()); }));
    watch.add(made.mpu());
    return made;
  }
  Net net() const {
    return make_seeded(3, [] { return Net(); });
  }
};

inline void step(Net& model) {
  loss_of(model->forward(ids()), ids()).backward();
}

inline void throw_in(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception&) {  // every rank's own, at the same place
    return;
  }
  FAIL() << "nothing was thrown";
}

/// Settings of a config.
inline std::vector<std::string> stages_of(const std::string& kind) {
  return {"model_parallelism.pipeline_schedule=" + kind,
          c10::str("model_parallelism.num_model_chunks=", pipeline::default_chunks(kind))};
}

struct Use {
  std::string name;
  std::function<void(const Scene&)> use;
  Grid grid = {1, 2, 1};
  std::vector<std::string> settings = {};
};

using Uses = std::vector<Use>;
inline void add(Uses& uses, std::string name, std::function<void(const Scene&)> use,
                Grid grid = {1, 2, 1}, std::vector<std::string> settings = {}) {
  uses.push_back({std::move(name), std::move(use), grid, std::move(settings)});
}

/// Forward and backward passes, optimizers, what is kept of them, what throws.
void add_training(Uses& uses);
/// What else a program does with a model, alone and over data ranks.
void add_other_uses(Uses& uses);
/// Every kind of schedule.
void add_pipelines(Uses& uses);

inline Uses all_uses() {
  Uses uses;
  add_training(uses);
  add_other_uses(uses);
  add_pipelines(uses);
  return uses;
}

}  // namespace oslo::lifetime_test
