// Every two of the ways to share a model beside each other, in one config, against one device; and
// docs/combinations.md, which says which combine. OSLO_UPDATE_GOLDEN=1 writes it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/models/sequence_language_model.h"
#include "tests/support/pipeline_parity.h"

namespace sequence_model {
namespace {

using Json = nlohmann::json;
using pipeline_parity::Tensors;

/// One way, and how many ranks of which axes it takes.
struct Way {
  const char* name;
  Json config;
  int data = 1, tensor = 1, pipeline = 1;  ///< `tensor`: all ranks that cut layers
  bool half = false;                       ///< numbers are those of bf16
};

const std::vector<Way>& ways() {
  const auto mode = [](int size, const char* name) {
    return Json{{"parallel", {{"tensor", {{"size", size}, {"mode", name}}}}}};
  };
  const auto zero = [](int stage) {
    return Json{{"zero_optimization", {{"enabled", true}, {"stage", stage}}}};
  };
  Json stream = mode(2, "1d"), deep = mode(8, "2.5d");
  stream["sequence_parallel"] = true;
  deep["parallel"]["tensor"]["depth"] = 2;
  static const std::vector<Way> all = {
      {"data 2", Json::object(), 2},
      {"ZeRO, stage 2", zero(2), 2},
      {"ZeRO, stage 3", zero(3), 2},
      {"tensor 2", mode(2, "1d"), 1, 2},
      {"sequence_parallel", stream, 1, 2},
      {"context 2", {{"context_parallel_size", 2}}, 1, 2},
      {"ring, head and tail",
       {{"context_parallel_size", 2},
        {"context_attention", "ring"},
        {"context_order", "head_tail"}},
       1,
       2},
      {"2d", mode(4, "2d"), 1, 4},
      {"2.5d", deep, 1, 8},
      {"3d", mode(8, "3d"), 1, 8},
      {"pipeline 2", {{"parallel", {{"pipeline", {{"size", 2}}}}}}, 1, 1, 2},
      {"activation_checkpoint", {{"activation_checkpoint", {{"enabled", true}}}}},
      {"amp", {{"amp", {{"enabled", true}}}, {"master_weights", true}}, 1, 1, 1, true},
      {"kernel_fusion", {{"kernel_fusion", true}}},
  };
  return all;
}

/// Whether both give one key a value of their own.
bool contradict(const Json& a, const Json& b) {
  if (!a.is_object() || !b.is_object()) return a != b;
  for (const auto& [key, value] : a.items()) {
    if (b.contains(key) && contradict(value, b[key])) return true;
  }
  return false;
}

Way both(const Way& a, const Way& b) {
  Way made{a.name, a.config, a.data * b.data, 1, a.pipeline * b.pipeline, a.half || b.half};
  made.config.merge_patch(b.config);
  // Ranks of one key are the same ranks.
  const bool same = a.config.contains("parallel") && b.config.contains("parallel") &&
                    a.tensor > 1 && b.tensor > 1;
  const bool context =
      a.config.contains("context_parallel_size") && b.config.contains("context_parallel_size");
  made.tensor = same || context ? std::max(a.tensor, b.tensor) : a.tensor * b.tensor;
  return made;
}

Tensor ids_of(const Options& o) {
  return torch::randint(o.words, {8, 9}, torch::kLong);
}

/// Loss, every gradient and weights, in double.
void expect_exact(const Way& way) {
  const Options o = four_heads();
  pipeline_parity::Trial trial;
  trial.grid = {way.data, way.tensor, way.pipeline};
  trial.config = way.config.dump();
  trial.shares = way.config.contains(Json::json_pointer("/zero_optimization/stage")) &&
                 way.config["zero_optimization"]["stage"] == 2;
  trial.micro_batches = 2;
  trial.steps = 2;
  pipeline_parity::expect_parity(
      trial, [&] { return LanguageModel(o); }, [&](int) { return Tensors{ids_of(o)}; },
      [](LanguageModel& model, const Tensors& batch) { return model->loss(batch[0]); });
}

/// Gradients as near to the exact ones as bf16 comes.
void expect_near(const Way& way) {
  const Options o = four_heads();
  const Tensor ids = parity::make_seeded(50, [&] { return ids_of(o); });
  oslo::run_as_threads(way.data * way.tensor * way.pipeline, [&](oslo::World world) {
    at::set_num_threads(1);
    const auto make = [&] { return LanguageModel(o); };
    auto exact = parity::make_seeded(7, make), model = parity::make_seeded(7, make);
    oslo::InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { model->loss(ids).backward(); };
    const auto parallel = oslo::initialize(model, oslo::Config::parse(way.config.dump()), how);
    const oslo::MPU& mpu = parallel.mpu();
    oslo::PipelineSchedule schedule(parallel, oslo::PipelineOptions().num_microbatches(2));
    exact->loss(ids).backward();
    const Tensor own =
        ids.tensor_split(mpu.get_data_parallel_world_size(), 0)[mpu.get_data_parallel_rank()];
    schedule.forward_backward_step({own},
                                   [&](const Tensors& micro) { return model->loss(micro[0]); });
    double difference = 0, size = 0;
    parity::for_each_parameter(
        *model, *exact, [&](const std::string& name, const Tensor& mine, const Tensor& expected) {
          if (!oslo::is_here(mine)) return;
          ASSERT_EQ(mine.grad().defined(), expected.grad().defined()) << name;
          if (!mine.grad().defined()) return;
          const Tensor whole = pipeline_parity::whole_here(mine.grad());
          difference += (whole - expected.grad()).pow(2).sum().item<double>();
          size += expected.grad().pow(2).sum().item<double>();
        });
    EXPECT_LT(std::sqrt(difference / size), 0.05);
  });
}

/// What `initialize` says against it; empty where it trains as on one device.
std::string refusal_of(const Way& way) {
  try {
    way.half ? expect_near(way) : expect_exact(way);
  } catch (const oslo::ConfigError& error) {
    const std::string message = error.what();
    const std::string line = message.substr(0, message.find('\n'));
    const size_t rank = line.find("rank 0: ");
    return rank == std::string::npos ? line : line.substr(rank + 8);
  }
  return "";
}

std::filesystem::path page() {
  return std::filesystem::path(OSLO_SOURCE_DIR) / "docs/combinations.md";
}

constexpr const char* kHead = R"(# What combines

<!-- Written by tests/combinations_test.cpp, which trains each: OSLO_UPDATE_GOLDEN=1 -->

Every two ways to share a model beside each other, in one config: a GPT-2 trained so had the losses,
gradients and weights of one device (with `amp`, gradients as near as bf16 comes). On the diagonal a
way is alone. `-`: two values of one key. A number: refused by name on every rank before anything
moves, with these words. Three and more beside each other:
[grid_parallel_test](../tests/grid_parallel_test/combinations.cpp).

)";

TEST(Combinations, EveryTwoTrainAsOneDeviceOrAreRefusedByName) {
  std::ostringstream table;
  std::vector<std::string> refusals;
  table << kHead << "| |";
  for (const Way& way : ways()) table << " " << way.name << " |";
  table << "\n|---|";
  for (size_t i = 0; i < ways().size(); ++i) table << "---|";
  table << "\n";
  for (size_t i = 0; i < ways().size(); ++i) {
    table << "| " << ways()[i].name << " |";
    for (size_t k = 0; k < ways().size(); ++k) {
      const Way &a = ways()[i], &b = ways()[k];
      SCOPED_TRACE(c10::str(a.name, " beside ", b.name));
      if (k > i) {
        table << " |";
      } else if (i != k && contradict(a.config, b.config)) {
        table << " - |";
      } else {
        const std::string refusal = refusal_of(i == k ? a : both(a, b));
        if (!refusal.empty()) refusals.push_back(refusal);
        table << " " << (refusal.empty() ? "yes" : std::to_string(refusals.size())) << " |";
      }
    }
    table << "\n";
  }
  for (size_t i = 0; i < refusals.size(); ++i) table << "\n" << i + 1 << ". " << refusals[i];
  if (!refusals.empty()) table << "\n";
  const char* update = std::getenv("OSLO_UPDATE_GOLDEN");
  if (update != nullptr && std::string(update) == "1") std::ofstream(page()) << table.str();
  std::ifstream in(page());
  std::ostringstream written;
  written << in.rdbuf();
  EXPECT_EQ(written.str(), table.str()) << "OSLO_UPDATE_GOLDEN=1 writes docs/combinations.md";
}

}  // namespace
}  // namespace sequence_model
