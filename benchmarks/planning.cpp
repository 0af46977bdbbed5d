// What planning costs: the automatic plan of GPT-2 models by dry runs, and the memory it takes; and
// what `initialize` takes of small models whose plan is long to find, by the rates of OSLO_RATES.
//
//   bench_planning [--device cpu]   the usual Google Benchmark table; rss_mb is the growth of the
//                                   resident set while planning, runs the dry runs it took
//
// The largest, GPT-2 XL, needs 6 GiB for its parameters.
#include <benchmark/benchmark.h>
#include <oslo_cpp/oslo.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <memory>
#include <string>

#include "benchmarks/device.h"
#include "parallelizers/plan/layers/structural_plan.h"
#include "parallelizers/plan/search/automatic_plan.h"
#include "tests/models/gpt2.h"
#include "tests/models/unet.h"

namespace {

double resident_megabytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  file >> pages >> resident;
  return static_cast<double>(resident * sysconf(_SC_PAGESIZE)) / 1e6;
}

/// Arguments: layers, hidden size, heads, ranks.
void plan_gpt2(benchmark::State& state, const torch::Device& device) {
  at::set_num_threads(1);
  models::GPT2Options options;
  options.vocabulary = 50257;
  options.positions = 1024;
  options.layers = state.range(0);
  options.hidden = state.range(1);
  options.heads = state.range(2);
  models::GPT2 model(options);
  model->to(device);
  const auto tokens = torch::zeros({2, 1024}, torch::TensorOptions(torch::kLong).device(device));
  double grown = 0;
  int64_t runs = 0;
  for (auto _ : state) {
    const double before = resident_megabytes();
    auto layers = oslo::plannable_layers(model.ptr());
    oslo::plan_by_structure(layers);
    oslo::follow_ties(layers);
    oslo::FirstWrites writes;
    runs = oslo::plan_automatically(
               layers, model.ptr(), static_cast<int>(state.range(3)),
               [&] { model->forward(tokens); }, writes)
               .runs;
    grown = std::max(grown, resident_megabytes() - before);
  }
  state.counters["rss_mb"] = grown;
  state.counters["runs"] = static_cast<double>(runs);
}

/// A model, and its example.
struct Example {
  std::shared_ptr<torch::nn::Module> model;
  std::function<void()> forward;
};

Example small_unet() {
  models::unet::UNet model;
  return {model.ptr(), [model]() mutable {
            model->forward(torch::zeros({4, 2, 12, 16}), torch::zeros({4, 6}));
          }};
}

/// Small matrices, and layers by the hundred.
Example deep_gpt2() {
  models::GPT2Options options;
  options.vocabulary = 128;
  options.positions = 32;
  options.layers = 96;
  options.hidden = 32;
  options.heads = 4;
  models::GPT2 model(options);
  return {model.ptr(), [model]() mutable { model->forward(torch::zeros({2, 16}, torch::kLong)); }};
}

/// All of `initialize`, as rank 0 of a pretended world.
void initialize(benchmark::State& state, Example (*make)(), int tensor, int pipeline) {
  at::set_num_threads(1);
  for (auto _ : state) {
    state.PauseTiming();
    const Example example = make();
    oslo::InitializeOptions how;
    how.world = oslo::World::fake(0, tensor * pipeline);
    how.example_inputs = example.forward;
    auto config = oslo::Config::parse(R"({"model_parallelism": {"enable": true}})");
    config.set(c10::str("model_parallelism.tensor_parallel_size=", tensor));
    config.set(c10::str("model_parallelism.pipeline_parallel_size=", pipeline));
    state.ResumeTiming();
    oslo::initialize(example.model, config, how);
  }
}
}  // namespace

int main(int argc, char** argv) {
  const torch::Device device = bench::device_named(bench::take_device_name(argc, argv));
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RegisterBenchmark("plan_gpt2", plan_gpt2, device)
      ->ArgNames({"layers", "hidden", "heads", "ranks"})
      ->Args({12, 768, 12, 8})
      ->Args({12, 768, 12, 4096})
      ->Args({48, 1600, 25, 8})
      ->Unit(benchmark::kMillisecond)
      ->Iterations(1);
  const auto add = [](const std::string& name, Example (*make)(), int tensor, int pipeline) {
    benchmark::RegisterBenchmark(
        (name + "/tensor:" + std::to_string(tensor) + "/pipeline:" + std::to_string(pipeline))
            .c_str(),
        initialize, make, tensor, pipeline)
        ->Unit(benchmark::kMillisecond)
        ->Iterations(1);
  };
  add("unet", small_unet, 2, 1);
  add("gpt2_96_layers", deep_gpt2, 1, 2);
  add("gpt2_96_layers", deep_gpt2, 2, 1);
  add("gpt2_96_layers", deep_gpt2, 2, 2);
  benchmark::RunSpecifiedBenchmarks();
}
