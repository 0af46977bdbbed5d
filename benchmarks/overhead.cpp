// What the library costs where it should cost nothing: a model at world size 1, and one operator on
// a cut value over the same operator on this rank's plain part (no communication: a fake group).
//
//   bench_overhead            the usual Google Benchmark table
//
// Compare ratios within one run. Pairs run interleaved with --benchmark_enable_random_interleaving.
#include <benchmark/benchmark.h>
#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include "tests/models/gpt2.h"

namespace {

/// A value of 8 x 8, cut in two on its last dimension, and its local part.
struct Cut {
  explicit Cut(bool grad) {
    at::set_num_threads(1);
    local = torch::randn({8, 4}).requires_grad_(grad);
    placed = oslo::from_local(local, mpu.tensor_mesh(), {oslo::Placement::shard(1)}, {8, 8});
  }
  oslo::MPU mpu{oslo::World::fake(0, 2), oslo::MpuOptions().tensor_parallel_size(2)};
  torch::Tensor local, placed;
};

void plain_add(benchmark::State& state) {
  const Cut cut(state.range(0) != 0);
  for (auto _ : state) benchmark::DoNotOptimize(torch::add(cut.local, cut.local));
}
BENCHMARK(plain_add)->ArgName("grad")->Arg(0)->Arg(1);

void cut_add(benchmark::State& state) {
  const Cut cut(state.range(0) != 0);
  for (auto _ : state) benchmark::DoNotOptimize(torch::add(cut.placed, cut.placed));
}
BENCHMARK(cut_add)->ArgName("grad")->Arg(0)->Arg(1);

void plain_gelu(benchmark::State& state) {
  const Cut cut(state.range(0) != 0);
  for (auto _ : state) benchmark::DoNotOptimize(torch::gelu(cut.local));
}
BENCHMARK(plain_gelu)->ArgName("grad")->Arg(0)->Arg(1);

void cut_gelu(benchmark::State& state) {
  const Cut cut(state.range(0) != 0);
  for (auto _ : state) benchmark::DoNotOptimize(torch::gelu(cut.placed));
}
BENCHMARK(cut_gelu)->ArgName("grad")->Arg(0)->Arg(1);

/// One training step of a small GPT-2, as it is and after `initialize` in a world of one.
void training_step(benchmark::State& state, bool initialized) {
  at::set_num_threads(1);
  torch::manual_seed(0);
  models::GPT2 model{models::GPT2Options()};
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  if (initialized) {
    oslo::InitializeOptions how;
    how.world = oslo::World::alone();
    oslo::initialize(model, oslo::Config::parse("{}"), how);
  }
  oslo::DistributedDataParallel<models::GPT2> ddp(
      model, oslo::MPU(oslo::World::alone()).get_data_parallel_group());
  const auto tokens = torch::randint(64, {4, 32});
  for (auto _ : state) {
    optimizer.zero_grad();
    const auto logits = initialized ? ddp.forward(tokens) : model->forward(tokens);
    torch::nn::functional::cross_entropy(logits.view({-1, 64}), tokens.view({-1})).backward();
    optimizer.step();
  }
}
BENCHMARK_CAPTURE(training_step, plain, false)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(training_step, world_of_one, true)->Unit(benchmark::kMillisecond);

}  // namespace

BENCHMARK_MAIN();
