// What one rank of a tensor parallel job holds between two steps: weights, gradients and AdamW's
// two moments, as LibTorch's allocator counts them, beside the formula.
//
//   oslo run -n 2 memory --hidden 256
//
// Rank 0 prints one line of JSON, in bytes: held, formula, and the most that a step took.
#include <oslo_cpp/oslo.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "benchmarks/ranks/model.h"
#include "benchmarks/ranks/peer_plan.h"
#include "benchmarks/ranks/rank_program.h"
#include "benchmarks/ranks/tensor_memory.h"

namespace {

struct Size {
  int64_t hidden = 256, layers = 4, heads = 4, positions = 64, vocabulary = 512, batch = 2;

  /// Elements of a rank: the blocks' matrices and the biases of those cut by columns are divided.
  int64_t elements(int64_t ranks) const {
    const int64_t cut = 12 * hidden * hidden + 7 * hidden, whole = 6 * hidden;
    return layers * (cut / ranks + whole) + 2 * hidden + (vocabulary + positions) * hidden;
  }
};

void run(const Size& size, const std::string& device_name) {
  at::set_num_threads(1);
  torch::manual_seed(0);  // initialize insists that the ranks of a model draw the same
  const oslo::World world = oslo::World::from_environment();
  const torch::Device device = oslo::local_device(world, device_name);
  const auto memory = std::make_shared<bench::TensorMemory>(device.type());
  const c10::DebugInfoGuard counted(c10::DebugInfoKind::PROFILER_STATE, memory);
  bench::Gpt model(size.vocabulary, size.positions, size.hidden, size.heads, size.layers);
  model->to(device);
  oslo::InitializeOptions how;
  how.world = world;
  const oslo::ParallelModel parallel =
      oslo::initialize(model, bench::cut_like_the_peer(world.size()), how);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
  for (int step = 0; step < 3; ++step) {
    const auto place = torch::arange(size.batch * size.positions, device) * 7 + step;
    const auto tokens = place.remainder(size.vocabulary).view({size.batch, size.positions});
    const auto logits = model->forward(tokens).view({-1, size.vocabulary});
    optimizer.zero_grad();
    torch::nn::functional::cross_entropy(logits, tokens.flatten()).backward();
    optimizer.step();
  }
  constexpr int64_t kCopies = 4, kBytes = sizeof(float);
  const nlohmann::json result{{"held", memory->held()},
                              {"formula", kCopies * kBytes * size.elements(world.size())},
                              {"most", memory->most()}};
  if (world.rank() == 0) std::cout << result << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  Size size;
  std::string device = "cpu";
  CLI::App app("What a rank holds of a GPT trained with AdamW");
  app.add_option("--hidden", size.hidden)->capture_default_str();
  app.add_option("--layers", size.layers)->capture_default_str();
  app.add_option("--device", device, "cpu, cuda or cuda:0")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  return bench::outcome_of([&] { run(size, device); });
}
