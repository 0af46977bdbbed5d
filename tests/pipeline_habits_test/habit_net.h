#pragma once

#include "tests/support/pipeline_parity.h"

// A net of which a test says how it is used: its layers lie on all stages, in order.
namespace oslo::test {

using pipeline_parity::Grid;
using pipeline_parity::Outcome;
using pipeline_parity::Tensors;
using pipeline_parity::Trial;
using torch::Tensor;

constexpr int64_t kWide = 6, kWords = 11;
constexpr int kLayers = 4;

struct HabitNetImpl : torch::nn::Module {
  HabitNetImpl() {
    table = register_module("table", torch::nn::Embedding(kWords, kWide));
    for (int i = 0; i < kLayers; ++i) {
      layers.push_back(register_module(c10::str("layer", i), torch::nn::Linear(kWide, kWide)));
    }
    norm = register_module("norm", torch::nn::BatchNorm1d(kWide));
    late = register_module("late", torch::nn::Embedding(kWords, kWide));
  }
  Tensor layer(int i, const Tensor& x) { return layers[i]->forward(x); }

  torch::nn::Embedding table{nullptr}, late{nullptr};
  std::vector<torch::nn::Linear> layers;
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(HabitNet);

inline std::string habit_config(const Grid& grid) {
  std::string stages = R"("table": 0)";
  for (int i = 0; i < kLayers; ++i) {
    stages += c10::str(", \"layer", i, "\": ", i * grid.pipeline / kLayers);
  }
  const int last = grid.pipeline - 1;
  return c10::str(R"({"parallel": {"data": )", grid.data, R"(, "pipeline": )", grid.pipeline,
                  R"(, "tensor": {"size": )", grid.tensor, R"(, "mode": "1d"}}, "stages": {)",
                  stages, R"(, "norm": )", last, R"(, "late": )", last, "}}");
}

/// Numbers, what they should become, and words.
inline Tensors habit_batch(int64_t rows = 8) {
  const auto numbers = torch::TensorOptions(torch::kDouble);
  return {torch::randn({rows, kWide}, numbers), torch::randn({rows, kWide}, numbers),
          torch::randint(kWords, {rows, 5})};
}

using Habit = std::function<Tensor(HabitNetImpl& net, const Tensors& micro)>;

struct HabitTrial {
  std::vector<Grid> grids = {{1, 1, 2}, {1, 1, 4}, {1, 2, 2}};
  std::vector<const char*> kinds = {"gpipe", "1f1b"};
  std::function<void(HabitNetImpl&)> prepare = {};  ///< both models, before initialize
  bool example = true;
  int micro_batches = 4;
};

/// The habit trains as on one device, which takes a micro-batch at a time as well.
inline void expect_habit(const Habit& habit, const HabitTrial& how = {}) {
  for (const Grid& grid : how.grids) {
    for (const char* kind : how.kinds) {
      SCOPED_TRACE(grid.name() + " " + kind);
      Trial trial{grid, kind, how.micro_batches};
      trial.config = habit_config(grid);
      trial.batch_coupled = true;
      trial.example = how.example;
      const auto make = [&] {
        HabitNet net;
        if (how.prepare) how.prepare(*net);
        return net;
      };
      expect_parity(
          trial, make, [](int) { return habit_batch(); },
          [&](auto& net, const Tensors& micro) { return habit(*net, micro); });
    }
  }
}

}  // namespace oslo::test
