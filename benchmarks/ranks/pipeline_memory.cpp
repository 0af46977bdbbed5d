// What the ranks of a pipeline take of this machine's memory: a GPT trained with AdamW, as the
// system counts resident pages, beside the bytes of a stage's own weights, gradients and moments.
//
//   oslo run -n 2 pipeline_memory --hidden 512
//
// A pipeline of as many stages as there are ranks. Rank 0 prints one line of JSON, in bytes, of the
// rank where each is most: most (the peak in steps), held (between steps), formula. What a process
// takes before it has a model is left out.
#include <oslo_cpp/oslo.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "benchmarks/ranks/model.h"
#include "benchmarks/ranks/rank_program.h"

namespace {

struct Size {
  int64_t hidden = 512, layers = 8, heads = 8, positions = 64, vocabulary = 4096, batch = 8;
};

/// The most resident memory of this process since it was reset.
int64_t most_resident() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    int64_t kibibytes = 0;
    if (word == "VmHWM:" && status >> kibibytes) return kibibytes << 10;
  }
  throw std::runtime_error("/proc/self/status has no VmHWM");
}

void reset_most_resident() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

/// Of all ranks' numbers the largest.
double most_of_ranks(const oslo::MPU& mpu, int64_t own) {
  torch::Tensor all = torch::zeros({mpu.world().size()}, torch::kDouble);
  all[mpu.world().rank()] = static_cast<double>(own);
  return mpu.pipeline_group()->all_reduce(all).max().item<double>();
}

/// So that LibTorch's own code is in memory before anything is counted.
void train_something_small() {
  bench::Gpt model(8, 4, 8, 2, 1);
  torch::optim::AdamW optimizer(model->parameters());
  model->forward(torch::zeros({1, 4}, torch::kLong)).sum().backward();
  optimizer.step();
}

void run(const Size& size) {
  at::set_num_threads(1);
  train_something_small();
  torch::manual_seed(0);  // initialize insists that the ranks of a model draw the same
  const oslo::World world = oslo::World::from_environment();
  const int64_t before = oslo::memory_held(torch::kCPU);
  bench::Gpt model(size.vocabulary, size.positions, size.hidden, size.heads, size.layers);
  oslo::InitializeOptions how;
  how.world = world;
  const auto tokens = [&](int64_t step) {
    const auto place = torch::arange(size.batch * size.positions) * 7 + step;
    return place.remainder(size.vocabulary).view({size.batch, size.positions});
  };
  how.example_inputs = [&] { model->forward(tokens(0)); };
  oslo::Config config;
  config.set(c10::str("model_parallelism.pipeline_parallel_size=", world.size()));
  config.set("balance_stages=memory");
  const oslo::ParallelModel parallel = oslo::initialize(model, config, how);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  oslo::PipelineSchedule schedule(parallel, oslo::PipelineOptions().num_microbatches(8));
  reset_most_resident();
  for (int64_t step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    schedule.forward_backward_step({tokens(step)}, [&](const auto& micro) {
      const auto logits = model->forward(micro[0]).view({-1, size.vocabulary});
      return torch::nn::functional::cross_entropy(logits, micro[0].flatten());
    });
    optimizer.step();
  }
  const int64_t held = oslo::memory_held(torch::kCPU) - before, most = most_resident() - before;
  constexpr int64_t kCopies = 4;  // weights, gradients, AdamW's two moments
  const oslo::MPU& mpu = parallel.mpu();
  const nlohmann::json result{
      {"most", most_of_ranks(mpu, most)},
      {"held", most_of_ranks(mpu, held)},
      {"formula", most_of_ranks(mpu, kCopies * parallel.plan().local_bytes())}};
  if (world.rank() == 0) std::cout << result << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  Size size;
  CLI::App app("What a rank of a pipeline takes of the machine's memory");
  app.add_option("--hidden", size.hidden)->capture_default_str();
  app.add_option("--layers", size.layers)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return bench::outcome_of([&] { run(size); });
}
