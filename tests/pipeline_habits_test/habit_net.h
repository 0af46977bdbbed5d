#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

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

inline std::string habit_config(const Grid& grid, const std::string& kind = "1f1b") {
  const int number = grid.pipeline * oslo::pipeline::default_chunks(kind), last = number - 1;
  std::string stages = R"("table": 0)";
  for (int i = 0; i < kLayers; ++i) {
    stages += c10::str(", \"layer", i, "\": ", i * number / kLayers);
  }
  return c10::str(R"({"parallel": {"data": )", grid.data, R"(, "pipeline": {"size": )",
                  grid.pipeline, R"(, "schedule": ")", kind, R"("}, "tensor": {"size": )",
                  grid.tensor, R"(, "mode": "1d"}}, "stages": {)", stages, R"(, "norm": )", last,
                  R"(, "late": )", last, "}}");
}

/// Numbers, what they should become, and words.
inline Tensors habit_batch(int64_t rows = 8, const std::optional<at::Generator>& generator = {}) {
  const auto numbers = torch::TensorOptions(torch::kDouble);
  return {at::randn({rows, kWide}, generator, numbers),
          at::randn({rows, kWide}, generator, numbers),
          at::randint(kWords, {rows, 5}, generator, torch::kLong)};
}

using Habit = std::function<Tensor(HabitNetImpl& net, const Tensors& micro)>;

struct HabitRun {
  Grid grid;
  const char* kind;
  std::string name() const { return grid.name() + " " + kind; }
};

struct HabitTrial {
  std::vector<HabitRun> runs = {
      {{1, 1, 2}, "naive"},       {{1, 1, 4}, "gpipe"},       {{1, 2, 2}, "gpipe"},
      {{1, 1, 2}, "1f1b"},        {{1, 1, 4}, "1f1b"},        {{1, 2, 2}, "1f1b"},
      {{1, 1, 4}, "zero_bubble"}, {{1, 2, 2}, "zero_bubble"}, {{1, 1, 2}, "interleaved"},
      {{1, 1, 2}, "zbv"},         {{1, 2, 2}, "dualpipev"}};
  std::function<void(HabitNetImpl&)> prepare = {};  ///< both models, before initialize
  bool example = true;
  int micro_batches = 4;
  /// The kinds under which ranks would wait for each other for ever: they say so.
  std::set<std::string> refused_by = {};
};

/// The habit trains as on one device, which takes a micro-batch at a time as well.
inline void expect_habit(const Habit& habit, const HabitTrial& how = {}) {
  for (const HabitRun& run : how.runs) {
    SCOPED_TRACE(run.name());
    Trial trial{run.grid, run.kind, how.micro_batches};
    trial.config = habit_config(run.grid, run.kind);
    trial.batch_coupled = true;
    trial.example = how.example;
    trial.may_refuse = how.refused_by.count(run.kind) > 0;
    const auto make = [&] {
      HabitNet net;
      if (how.prepare) how.prepare(*net);
      return net;
    };
    const bool trained = expect_parity(
        trial, make, [](int) { return habit_batch(); },
        [&](auto& net, const Tensors& micro) { return habit(*net, micro); });
    EXPECT_NE(trained, trial.may_refuse);
  }
}

inline Tensor error_of_rows(const Tensor& y, const Tensor& wanted) {
  return torch::mse_loss(y, wanted);
}

}  // namespace oslo::test
