// One rank of a training job whose data ranks keep parts of the weights (ZeRO's third stage): times
// a whole step of a GPT, with AdamW. benchmarks/peers/sharded_step.py is the same job under
// PyTorch's FSDP2; benchmarks/report compares them.
//
//   oslo run -n 2 bench_sharded_step --hidden 256
//   oslo run -n 2 bench_sharded_step --set zero_optimization.stage=1
//   oslo run -n 2 bench_sharded_step --plain      DistributedDataParallel alone
//
// Rank 0 prints one line of JSON: the first loss and gradient and the losses of the steps behind
// it, by which the two are known to compute the same, the milliseconds of every timed step, those
// of the processor that this rank's threads take a step, and the bytes that are resident before the
// model is made, behind the steps, and at most in them; "proportional" counts those that ranks
// share once.
#include <oslo_cpp/oslo.h>

#include <CLI/CLI.hpp>
#include <ctime>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/ranks/model.h"
#include "benchmarks/ranks/rank_program.h"
#include "benchmarks/ranks/system_memory.h"
#include "benchmarks/ranks/timed_steps.h"

namespace {

struct Options {
  int64_t hidden = 64, layers = 4, heads = 4, positions = 64, vocabulary = 512, batch = 2;
  int warm_up = 5, steps = 40;
  bool plain = false;
  std::vector<std::string> set;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times steps of a GPT whose weights data ranks keep parts of");
  app.add_option("--hidden", options.hidden);
  app.add_option("--layers", options.layers);
  app.add_option("--batch", options.batch, "Sequences a rank");
  app.add_option("--warm-up", options.warm_up);
  app.add_option("--steps", options.steps);
  app.add_flag("--plain", options.plain, "Nothing is shared out");
  app.add_option("--set", options.set, "path=value of the config");
  bench::parse_or_exit(app, argc, argv);
  return options;
}

/// Of all threads of this process.
double processor_milliseconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const oslo::ParallelModel& parallel,
                                                      const bench::Gpt& model, bool by_owners) {
  const torch::optim::AdamWOptions options(1e-3);
  if (by_owners) {
    return std::make_unique<oslo::ZeroOptimizer<torch::optim::AdamW>>(parallel, options);
  }
  return std::make_unique<torch::optim::AdamW>(model->parameters(), options);
}

void run(const Options& options) {
  at::set_num_threads(1);
  torch::manual_seed(0);
  const oslo::World world = oslo::World::from_environment();
  nlohmann::json result;
  result["resident_before"] = bench::SystemMemory::now().resident;
  result["proportional_before"] = bench::SystemMemory::proportional();
  bench::Gpt model(options.vocabulary, options.positions, options.hidden, options.heads,
                   options.layers);
  oslo::Config config = oslo::Config::parse(
      options.plain ? "{}" : R"({"zero_optimization": {"enabled": true, "stage": 3}})");
  for (const std::string& each : options.set) config.set(each);
  oslo::InitializeOptions how;
  how.world = world;
  const oslo::ParallelModel parallel = oslo::initialize(model, config, how);
  oslo::DistributedDataParallel<bench::Gpt> ddp(model, parallel.mpu().data_group());
  const bool keeps_weights = model->wte->weight.numel() == options.vocabulary * options.hidden;
  const auto optimizer = optimizer_of(parallel, model, keeps_weights && !options.plain);
  const auto place = torch::arange(options.batch * options.positions) * 7 + world.rank();
  const auto tokens = place.remainder(options.vocabulary).view({options.batch, options.positions});
  const auto targets = (place + 3).remainder(options.vocabulary);
  const auto step = [&] {
    optimizer->zero_grad();
    const auto loss = torch::nn::functional::cross_entropy(
        ddp.forward(tokens).view({-1, options.vocabulary}), targets);
    loss.backward();
    optimizer->step();
    return loss;
  };

  result["loss"] = step().item<double>();
  result["gradient"] = oslo::full_tensor(model->wte->weight.grad()).abs().sum().item<double>();
  for (int i = 0; i < options.warm_up; ++i) result["losses"].push_back(step().item<double>());
  const auto barrier = [&] { parallel.mpu().data_group()->exchange(0); };
  bench::SystemMemory::forget_most();
  const double before = processor_milliseconds();
  result["milliseconds"] = bench::timed_steps(options.steps, barrier, step);
  result["processor"] = (processor_milliseconds() - before) / options.steps;
  result["resident"] = bench::SystemMemory::now().resident;
  barrier();
  result["proportional"] = bench::SystemMemory::proportional();
  barrier();
  result["resident_most"] = bench::SystemMemory::most_since();
  if (world.rank() == 0) std::cout << result << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  return bench::outcome_of([&] { run(options); });
}
