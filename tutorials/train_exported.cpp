// A language model that Python exported, trained over all ranks (docs/bring-your-model.md).
//
//   oslo run -n 2 -- ./train_exported gpt2.pt2 merged_ckpt
//
// The program takes tokens [batch, time] and gives logits [batch, time, words]. Rank 0 prints the
// plan and the losses of twenty steps; the trained weights are in merged_ckpt/, for Python's
// `model.load_state_dict(torch.load("merged_ckpt/pytorch_model.bin"))`.
#include <oslo_cpp/oslo.h>

#include <iostream>

using torch::Tensor;

// Rows that count: after each word comes the next one.
static Tensor counting(int64_t rows, int64_t length, int64_t words, int64_t step) {
  const Tensor first = torch::arange(rows).mul(7).add(step * 5).view({-1, 1});
  return (first + torch::arange(length)).remainder(words);
}

static void train(const oslo::World& world, const std::string& file, const std::string& folder) {
  torch::manual_seed(0);  // ranks that share a model draw alike
  const auto model = oslo::load_exported(file);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));

  oslo::InitializeOptions how;
  how.world = world;
  how.example_inputs = [&] { model->forward(model->example_inputs()); };
  oslo::Config config;
  config.set("model_parallelism.enable=true");
  config.set("model_parallelism.tensor_parallel_size=" + std::to_string(world.size()));
  const auto parallel = oslo::initialize(model, config, how);
  if (world.rank() == 0) std::cout << parallel.plan().to_string() << "\n";

  const Tensor example = model->example_inputs()[0].toTensor();
  int64_t words = 2;  // until the first logits say how many
  for (int step = 0; step <= 20; ++step) {
    const Tensor text = counting(example.size(0), example.size(1) + 1, words, step);
    const Tensor logits = model->forward({text.slice(1, 0, -1)}).toTensor();
    words = logits.size(2);
    if (step == 0) continue;
    const Tensor loss =
        torch::nn::functional::cross_entropy(logits.flatten(0, 1), text.slice(1, 1).flatten());
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    const double shown = loss.item<double>();
    if (world.rank() == 0) std::cout << "step " << step << "  loss " << shown << std::endl;
  }
  parallel.save_parallelized(folder, oslo::SaveOptions().merge_checkpoints(true));
}

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: train_exported model.pt2 folder\n";
    return 2;
  }
  try {
    train(oslo::World::from_environment(), argv[1], argv[2]);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
