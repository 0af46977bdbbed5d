// What the library costs where it should cost nothing: a model at world size 1, and one operator on
// a cut value over the same operator on this rank's plain part (no communication: a fake group).
//
//   bench_overhead [--device cpu]   the usual Google Benchmark table
//
// Each benchmark takes turns (turns.h).
#include <benchmark/benchmark.h>
#include <oslo_cpp/oslo.h>
#include <torch/torch.h>

#include "benchmarks/device.h"
#include "benchmarks/turns.h"
#include "tests/models/gpt2.h"

namespace {

using bench::take_turns;

/// An activation of 8 x 8, cut in two on its last dimension, and its local part: no leaf, which
/// would get and lose an accumulator of gradients in every call, and no view.
struct Cut {
  Cut(bool grad, const torch::Device& device) {
    at::set_num_threads(1);
    const auto part = torch::randn({8, 4}, device).requires_grad_(grad);
    local = part.clone();
    placed = oslo::from_local(part, mpu.tensor_mesh(), {oslo::Placement::shard(1)}, {8, 8}).clone();
  }
  oslo::MPU mpu{oslo::World::fake(0, 2), oslo::MpuOptions().tensor_parallel_size(2)};
  torch::Tensor local, placed;
};

template <typename Operator>
void on_a_cut_value(benchmark::State& state, const torch::Device& device, const Operator& op) {
  const Cut cut(state.range(0) != 0, device);
  take_turns(
      state, device, 100, [&] { benchmark::DoNotOptimize(op(cut.local)); },
      [&] { benchmark::DoNotOptimize(op(cut.placed)); });
}

void add(benchmark::State& state, const torch::Device& device) {
  on_a_cut_value(state, device, [](const torch::Tensor& x) { return torch::add(x, x); });
}

void gelu(benchmark::State& state, const torch::Device& device) {
  on_a_cut_value(state, device, [](const torch::Tensor& x) { return torch::gelu(x); });
}

/// A small GPT-2 and its optimizer, as it is or after `initialize` in a world of one.
class Training {
 public:
  Training(bool initialized, const torch::Device& device) : initialized_(initialized) {
    model_->to(device);
    tokens_ = torch::randint(64, {4, 32}).to(device);
    if (!initialized) return;
    oslo::InitializeOptions how;
    how.world = oslo::World::alone();
    oslo::initialize(model_, oslo::Config::parse("{}"), how);
  }

  void step() {
    optimizer_.zero_grad();
    const auto logits = initialized_ ? ddp_.forward(tokens_) : model_->forward(tokens_);
    torch::nn::functional::cross_entropy(logits.view({-1, 64}), tokens_.view({-1})).backward();
    optimizer_.step();
  }

 private:
  bool initialized_;
  models::GPT2 model_{models::GPT2Options()};
  torch::optim::AdamW optimizer_{model_->parameters(), torch::optim::AdamWOptions(1e-3)};
  oslo::DistributedDataParallel<models::GPT2> ddp_{
      model_, oslo::MPU(oslo::World::alone()).get_data_parallel_group()};
  torch::Tensor tokens_;
};

void training_step(benchmark::State& state, const torch::Device& device) {
  at::set_num_threads(1);
  Training plain(false, device), initialized(true, device);
  take_turns(
      state, device, 1, [&] { plain.step(); }, [&] { initialized.step(); });
}

}  // namespace

int main(int argc, char** argv) {
  const torch::Device device = bench::device_named(bench::take_device_name(argc, argv));
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  using benchmark::RegisterBenchmark;
  RegisterBenchmark("add", add, device)->ArgName("grad")->Arg(0)->Arg(1)->Iterations(3000);
  RegisterBenchmark("gelu", gelu, device)->ArgName("grad")->Arg(0)->Arg(1)->Iterations(1000);
  RegisterBenchmark("training_step", training_step, device)->Iterations(500);
  benchmark::RunSpecifiedBenchmarks();
}
