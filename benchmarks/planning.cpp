// What planning costs: the automatic plan of GPT-2 models by dry runs, and the memory it takes.
//
//   bench_planning [--device cpu]   the usual Google Benchmark table; rss_mb is the growth of the
//                                   resident set while planning, runs the dry runs it took
//
// The largest, GPT-2 XL, needs 6 GiB for its parameters.
#include <benchmark/benchmark.h>
#include <torch/torch.h>
#include <unistd.h>

#include <fstream>

#include "benchmarks/device.h"
#include "parallelizers/plan/layers/structural_plan.h"
#include "parallelizers/plan/search/automatic_plan.h"
#include "tests/models/gpt2.h"

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
  benchmark::RunSpecifiedBenchmarks();
}
