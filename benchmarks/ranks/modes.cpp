// One rank of a GPT that a config shares: what it holds between steps, what a step takes of its
// memory beside that, what it receives, and how long a step takes.
//
//   oslo run -n 4 bench_modes --config '{"parallel": {"tensor": {"size": 4, "mode": "2d"}}}'
//
// Rank 0 prints one line of JSON: the first loss, milliseconds of every timed step, bytes held, the
// most that a step took, and the elements that this rank received in a step.
#include <oslo_cpp/oslo.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "benchmarks/ranks/model.h"
#include "benchmarks/ranks/rank_program.h"
#include "benchmarks/ranks/tensor_memory.h"
#include "benchmarks/ranks/timed_steps.h"

namespace {

struct Options {
  std::string config;
  int64_t hidden = 256, layers = 4, heads = 4, positions = 64, vocabulary = 512, batch = 4;
  int warm_up = 3, steps = 20;
  std::string device = "cpu";
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a GPT as a config shares it");
  app.add_option("--config", options.config, "JSON")->required();
  app.add_option("--hidden", options.hidden);
  app.add_option("--layers", options.layers);
  app.add_option("--positions", options.positions);
  app.add_option("--batch", options.batch, "Sequences");
  app.add_option("--warm-up", options.warm_up);
  app.add_option("--steps", options.steps);
  app.add_option("--device", options.device, "cpu, cuda (a GPU for each rank) or cuda:0");
  bench::parse_or_exit(app, argc, argv);
  return options;
}

int64_t received(const oslo::MPU& mpu) {
  int64_t elements = 0;
  for (const auto& group : mpu.groups()) elements += group->ledger().total().elements;
  return elements;
}

void run(const Options& options) {
  at::set_num_threads(1);
  torch::manual_seed(0);  // initialize insists that the ranks of a model draw the same
  const oslo::World world = oslo::World::from_environment();
  const torch::Device device = oslo::local_device(world, options.device);
  const auto memory = std::make_shared<bench::TensorMemory>(device.type());
  const c10::DebugInfoGuard counted(c10::DebugInfoKind::PROFILER_STATE, memory);
  bench::Gpt model(options.vocabulary, options.positions, options.hidden, options.heads,
                   options.layers);
  model->to(device);
  const auto place = torch::arange(options.batch * options.positions, device) * 7;
  const auto tokens = place.remainder(options.vocabulary).view({options.batch, options.positions});
  const auto targets = (place + 3).remainder(options.vocabulary);
  const auto loss_of_batch = [&] {
    const auto logits = model->forward(tokens);
    return torch::nn::functional::cross_entropy(logits.reshape({-1, options.vocabulary}), targets);
  };
  oslo::InitializeOptions how;
  how.world = world;
  how.example_inputs = [&] { loss_of_batch().backward(); };
  const oslo::ParallelModel parallel =
      oslo::initialize(model, oslo::Config::parse(options.config), how);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  const auto step = [&] {
    optimizer.zero_grad();
    const auto loss = loss_of_batch();
    loss.backward();
    optimizer.step();
    return loss.detach();
  };
  nlohmann::json result;
  result["loss"] = oslo::full_tensor(step()).item<double>();
  for (const auto& group : parallel.mpu().groups()) group->ledger().clear();
  step();
  result["received"] = received(parallel.mpu());
  for (int i = 0; i < options.warm_up; ++i) step();
  const auto finish = [&] {
    if (device.is_cuda()) torch::cuda::synchronize(device.index());
  };
  const oslo::MPU everyone(world);
  const auto barrier = [&] { everyone.data_group()->exchange(0); };
  result["milliseconds"] = bench::timed_steps(options.steps, barrier, [&] { step(), finish(); });
  result["held"] = memory->held();
  result["most"] = memory->most();
  if (world.rank() == 0) std::cout << result << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  return bench::outcome_of([&] { run(options); });
}
