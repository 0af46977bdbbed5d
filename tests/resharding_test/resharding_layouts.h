#pragma once

#include <gtest/gtest.h>
#include <oslo_cpp/oslo.h>

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/seeded.h"
#include "tutorials/models/gpt2.h"

// One small GPT-2 over many layouts: its head is tied to its table, which lies on the first and on
// the last pipeline stage; nothing divides by 2 and 3 alike.
namespace oslo::resharding_test {

using Gpt2 = gpt2::GPT2LMHeadModel;

inline gpt2::GPT2Config small_config() {
  gpt2::GPT2Config config;
  config.vocab_size = 53;
  config.n_positions = 11;
  config.n_embd = 20;
  config.n_layer = 2;
  config.n_head = 5;
  config.embd_pdrop = config.attn_pdrop = config.resid_pdrop = 0;
  return config;
}

inline Gpt2 make_gpt2(int seed) {
  return test::make_seeded(seed, [] { return Gpt2(small_config()); });
}

/// Sizes of the config, or named axes with a plan of their own.
struct GridCase {
  std::string name;
  int tensor = 1, pipeline = 1, data = 1;
  std::vector<Axis> axes = {};
  nlohmann::json plan = nullptr;

  int world() const {
    int ranks = tensor * pipeline * data;
    for (const Axis& axis : axes) ranks *= axis.size;
    return ranks;
  }
  Config config() const {
    nlohmann::json json = {{"model_parallelism",
                            {{"enable", true},
                             {"tensor_parallel_size", tensor},
                             {"pipeline_parallel_size", pipeline}}}};
    if (!plan.is_null()) json["plan"] = plan;
    return Config::from_json(json);
  }
};

inline std::vector<GridCase> grid_cases() {
  // A matrix cut over both axes in both dimensions, one over both in one dimension, one over the
  // second alone.
  const nlohmann::json two_axes = {{"transformer.h.*.mlp.c_fc", "row: row; column: column"},
                                   {"transformer.h.*.mlp.c_proj", "row: row; column: row"},
                                   {"transformer.wte", "column: vocab"}};
  return {{"one"},
          {"tensor 2", 2},
          {"tensor 3", 3},
          {"data 2", 1, 1, 2},
          {"pipeline 2", 1, 2},
          {"tensor 2 x pipeline 2", 2, 2},
          {"tensor 3 x data 2", 3, 1, 2},
          {"row 2 x column 2", 1, 1, 1, {{"row", 2}, {"column", 2}}, two_axes}};
}

/// Layouts of as many ranks.
inline std::vector<std::vector<GridCase>> layouts_by_world() {
  return {{{"data 2", 1, 1, 2}, {"tensor 2", 2}, {"pipeline 2", 1, 2}},
          {{"tensor 4", 4},
           {"tensor 2 x pipeline 2", 2, 2},
           {"tensor 2 x data 2", 2, 1, 2},
           grid_cases().back()}};
}

inline InitializeOptions options_on(const World& world, const GridCase& grid, const Gpt2& model) {
  InitializeOptions how;
  how.world = world;
  how.axes = grid.axes;
  Gpt2 run = model;
  how.example_inputs = [run]() mutable { run->forward(torch::arange(9).view({1, 9})); };
  return how;
}

/// `body` on every rank of the grid with a model drawn with `seed`.
inline void on_grid(const GridCase& grid, int seed,
                    const std::function<void(ParallelModel&, Gpt2&)>& body) {
  run_as_threads(grid.world(), [&](World world) {
    at::set_num_threads(1);
    Gpt2 model = make_gpt2(seed);
    ParallelModel parallel = initialize(model, grid.config(), options_on(world, grid, model));
    body(parallel, model);
  });
}

/// What the model computes with, by name: `lm_head->weight = wte->weight` leaves a tensor
/// registered that nothing uses.
inline std::map<std::string, torch::Tensor> in_use(const Gpt2& model) {
  std::map<std::string, torch::Tensor> tensors;
  for (const NamedTensor& parameter : ModelView(*model).in_use()) {
    tensors[parameter.name] = parameter.tensor;
  }
  return tensors;
}

/// Every parameter of `model` is whole that of `expected`, bit for bit; collective.
inline void expect_values(const Gpt2& model, const Gpt2& expected) {
  const torch::NoGradGuard no_grad;
  const auto plain = in_use(expected);
  for (const auto& [name, tensor] : in_use(model)) {
    EXPECT_TRUE(torch::equal(full_tensor(tensor), plain.at(name))) << name;
  }
}

}  // namespace oslo::resharding_test
