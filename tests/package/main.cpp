#include <oslo_cpp/oslo.h>

#include <iostream>

#include "contract.h"

// The contract as a user's program: compiled against the installed package, run alone and by
// `oslo run -n 4`. An ordinary model, made parallel, trained, saved, loaded and merged.
struct MyModelImpl : torch::nn::Module {
  MyModelImpl()
      : embedding(register_module("embedding", torch::nn::Embedding(50, 32))),
        up(register_module("up", torch::nn::Linear(32, 96))),
        down(register_module("down", torch::nn::Linear(96, 32))),
        head(register_module("head", torch::nn::Linear(32, 50))) {}
  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto x = embedding(tokens);
    return head(x + down(torch::gelu(up(x))));
  }
  torch::nn::Embedding embedding;
  torch::nn::Linear up, down, head;
};
TORCH_MODULE(MyModel);

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "package_test";
  oslo::World world = oslo::World::from_environment();
  torch::manual_seed(1);
  MyModel model;
  const auto tokens = torch::randint(50, {8, 6}), labels = torch::randint(50, {8, 6});

  oslo::Config config = oslo::Config::parse(R"({"model_parallelism": {"enable": true}})");
  if (world.size() > 1) config.set("model_parallelism.tensor_parallel_size=2");
  oslo::InitializeOptions how;
  how.world = world;
  how.example_inputs = [&] { model->forward(tokens); };
  oslo::ParallelModel parallel = oslo::initialize(model, config, how);

  const oslo::MPU& mpu = parallel.mpu();
  oslo::DistributedDataParallel<MyModel> ddp(model, mpu.get_data_parallel_group());
  const int ranks = mpu.get_data_parallel_world_size();
  torch::data::samplers::DistributedRandomSampler sampler(8, ranks, mpu.get_data_parallel_rank());
  torch::optim::AdamW optimizer(model->parameters());
  if (sampler.next(8).value().size() != static_cast<size_t>(8 / ranks)) return 1;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    auto loss =
        torch::nn::functional::cross_entropy(ddp.forward(tokens).view({-1, 50}), labels.view({-1}));
    loss.backward();
    parallel.clip_grad_norm_(1.0);
    optimizer.step();
    if (world.rank() == 0) std::cout << "loss " << loss.item<float>() << std::endl;
  }
  parallel.check();
  parallel.save_parallelized(folder + "/parallel_ckpt");
  parallel.from_parallelized(folder + "/parallel_ckpt");
  parallel.save_parallelized(folder + "/merged_ckpt", oslo::SaveOptions().merge_checkpoints(true));
  const auto weight = oslo::full_tensor(parallel.module_as<MyModelImpl>()->up->weight);
  if (weight.size(0) != 96 || oslo::is_placed(weight)) return 1;
  if (world.rank() == 0) std::cout << parallel.plan().to_string();
  use_the_contract(world, folder + "/contract");
  return 0;
}
