#include <oslo_cpp/oslo.h>

#include <filesystem>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "contract.h"

// Every name of the contract, used as a program would: the types that are written out are part of
// it.
namespace {

using Ranks = std::vector<int>;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

void expect(bool right, const char* what) {
  if (!right) throw std::runtime_error(std::string("the contract does not hold: ") + what);
}

struct NetImpl : torch::nn::Module {
  NetImpl()
      : up(register_module("up", torch::nn::Linear(6, 10))),
        down(register_module("down", torch::nn::Linear(10, 6))) {}
  torch::Tensor forward(const torch::Tensor& x) { return down(torch::gelu(up(x))); }
  torch::nn::Linear up, down;
};
TORCH_MODULE(Net);

void grids(const oslo::World& world) {
  const oslo::MPU alone(world, oslo::MpuOptions());
  const Group data = alone.get_data_parallel_group(), tensor = alone.get_tensor_parallel_group(),
              pipeline = alone.get_pipeline_parallel_group(),
              model = alone.get_model_parallel_group();
  expect(data->getSize() == world.size() && tensor->getSize() == 1 && pipeline->getSize() == 1 &&
             model->getSize() == 1,
         "the groups' sizes");
  const int rank = alone.get_data_parallel_rank(), size = alone.get_data_parallel_world_size();
  expect(rank == world.rank() && size == world.size(), "the data axis");
  expect(alone.is_pipeline_first_stage() && alone.is_pipeline_last_stage(), "one stage");

  const oslo::MPU eight(oslo::World::fake(0, 8),
                        oslo::MpuOptions().tensor_parallel_size(2).pipeline_parallel_size(2));
  expect(eight.get_pipeline_parallel_groups() == std::vector<Ranks>{{0, 4}, {1, 5}, {2, 6}, {3, 7}},
         "pipeline groups");
  expect(eight.get_data_parallel_groups() == std::vector<Ranks>{{0, 2}, {1, 3}, {4, 6}, {5, 7}},
         "data groups");
  expect(eight.get_tensor_parallel_ranks() == Ranks{0, 1}, "tensor ranks");
  const oslo::MPU colossal(
      oslo::World::fake(0, 8),
      oslo::MpuOptions().tensor_parallel_size(2).pipeline_parallel_size(2).rank_order(
          oslo::RankOrder::dp_pp_tp));
  expect(colossal.get_data_parallel_groups()[0] == Ranks{0, 4}, "Colossal-AI's order");
  const oslo::MPU named(oslo::World::fake(0, 4),
                        oslo::MpuOptions().axes({{"data", 2}, {"tensor", 2}}));
  expect(named.size("tensor") == 2 && named.rank("data") == 0 && named.group("tensor") != nullptr &&
             named.mesh({"data", "tensor"}) != nullptr && !named.to_string().empty(),
         "named axes");

  const auto x = torch::arange(6).view({2, 3});
  expect(torch::equal(alone.broadcast(x), x) && torch::equal(alone.reduce(x), x) &&
             torch::equal(alone.scatter(x), x) && torch::equal(alone.gather(x), x),
         "collectives of one rank");
}

void configurations() {
  for (
      const char* text :
      {R"({"model_parallelism": {"enable": true, "tensor_parallel_size": 2, "pipeline_parallel_size": 2}})",
       R"({"train": {"dist": {"data_parallel_size": 2, "tensor_parallel_size": 2,
            "pipeline_parallel_size": 2, "pipeline_num_layers": 2, "custom_pipeline_stage_id": [0, 1]},
            "num_accumulation_steps": 8}})",
       R"({"parallel": {"data": null, "pipeline": {"size": 2}, "tensor": {"size": 2, "mode": "1d"}}})"}) {
    oslo::Config config = oslo::Config::parse(text);
    expect(!oslo::Config::from_json(nlohmann::json::parse(text)).to_json().empty(), "from_json");
  }
  oslo::Config libai = oslo::Config::parse(R"({"train": {"dist": {}}})");
  libai.set("train.dist.tensor_parallel_size=2");
  try {
    (void)oslo::Config::parse(R"({"model_paralelism": {}})");
    expect(false, "an unknown key is refused");
  } catch (const oslo::ConfigError& error) {
    expect(std::string(error.what()).find("model_parallelism") != std::string::npos, "its name");
  }
}

void layers(const oslo::World& world) {
  const oslo::MPU mpu(world, oslo::MpuOptions());
  oslo::nn::Linear linear(oslo::nn::LinearOptions(6, 4).parallel("col"), mpu);
  oslo::nn::ColumnParallelLinear up(6, 8, mpu);
  oslo::nn::RowParallelLinear down(8, 6, mpu);
  oslo::nn::VocabParallelEmbedding embedding(11, 6, mpu);
  const auto y = down(up(embedding(torch::tensor({1, 10}))));
  expect(oslo::local_tensor(y).sizes() == torch::IntArrayRef({2, 6}) && linear->weight.defined(),
         "layers by hand");
  oslo::nn::VocabParallelEmbedding2D table(11, 6, mpu);
  oslo::nn::LayerNorm2p5D norm(6, mpu);
  oslo::nn::Linear2D flat(oslo::nn::LinearOptions(6, 8), mpu);
  oslo::nn::Linear2p5D deep(8, 6, mpu);
  oslo::nn::Linear3D cube(6, 4, mpu);
  expect(cube(deep(flat(norm(table(torch::tensor({1, 10})))))).size(1) == 4, "layers on grids");
  const oslo::MPU grid(oslo::World::fake(1, 4),
                       oslo::MpuOptions().axes({{"row", 2}, {"column", 2}}));
  expect(oslo::nn::Linear2D(6, 8, grid)->weight.sizes() == torch::IntArrayRef({4, 3}),
         "a quarter of a weight");
  const oslo::MPU two(oslo::World::fake(1, 2), oslo::MpuOptions().tensor_parallel_size(2));
  const auto whole = torch::arange(10.).view({2, 5});
  const auto cut = oslo::distribute(whole, two.tensor_mesh(), {oslo::Placement::shard(1)});
  expect(oslo::is_placed(cut) && !oslo::layout(cut)->to_string().empty() &&
             torch::equal(oslo::local_tensor(cut), whole.slice(1, 3)),
         "a value cut in two");
  expect(torch::equal(oslo::full_tensor(whole), whole), "an ordinary tensor is its own whole");
}

void pipelines(const oslo::World& world, const std::string& folder) {
  Net net;
  oslo::InitializeOptions how;
  how.world = world;
  oslo::ParallelModel parallel =
      oslo::initialize(net, oslo::Config::parse(R"({"model_parallelism": {"enable": true}})"), how);
  torch::optim::AdamW optimizer(net->parameters());
  oslo::PipelineSchedule schedule(parallel,
                                  oslo::PipelineOptions().num_microbatches(2).kind("1f1b"));
  const auto x = torch::ones({4, 6}), y = torch::zeros({4, 6});
  oslo::StepResult step = schedule.forward_backward_step(
      {x, y},
      [&](const std::vector<torch::Tensor>& micro) {
        return torch::mse_loss(net->forward(micro[0]), micro[1]);
      },
      oslo::StepOptions().forward_only(false));
  const float loss = step.loss.item<float>();
  step = schedule.forward_backward_step(
      {x, y}, [&](const std::vector<torch::Tensor>& micro) { return net->forward(micro[0]); },
      [](const torch::Tensor& output, const std::vector<torch::Tensor>& micro) {
        return torch::mse_loss(output, micro[1]);
      },
      oslo::StepOptions().return_outputs(true));
  expect(step.loss.item<float>() == loss && step.outputs.size(0) == 4 && step.labels.size(0) == 4,
         "the two forms of a step");
  const double norm = parallel.clip_grad_norm_(1.0);
  optimizer.step();
  expect(norm > 0, "the norm");

  parallel.save_parallelized(folder + "/resumed",
                             oslo::SaveOptions().optimizer(&optimizer).extra({{"step", 3}}));
  nlohmann::json extra;
  parallel.from_parallelized(folder + "/resumed",
                             oslo::LoadOptions().optimizer(&optimizer).extra(&extra));
  expect(extra.at("step") == 3, "what was saved beside the model");
  parallel.save_parallelized(folder + "/merged", oslo::SaveOptions()
                                                     .merge_checkpoints(true)
                                                     .format("safetensors")
                                                     .config({{"model_type", "net"}}));
  expect(!parallel.plan().to_json().empty() && parallel.module() != nullptr, "the plan");
}

void scaling(const oslo::World& world) {
  Net net, other;
  oslo::InitializeOptions how;
  how.world = world;
  oslo::ParallelModel parallel = oslo::initialize(net, oslo::Config(), how);
  oslo::ParallelModel second = oslo::initialize(other, oslo::Config(), how);
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  const auto x = torch::ones({4, 6});

  oslo::GradScaler scaler(parallel, oslo::GradScalerOptions().init_scale(65536));
  scaler.scale(net->forward(x).sum()).backward();
  scaler.unscale_(optimizer);
  parallel.clip_grad_norm_(1.0);
  const bool stepped = scaler.step(optimizer);
  scaler.update();
  expect(stepped && scaler.get_scale() == 65536, "a step with a scaler");
  oslo::GradScaler both({&parallel, &second}, oslo::GradScalerOptions().init_scale(8));
  both.load_state_dict(scaler.state_dict());
  expect(both.get_scale() == 65536, "the scaler's state");

  oslo::DistributedDataParallel<Net> ddp(net, parallel.mpu().get_data_parallel_group());
  optimizer.zero_grad();
  const auto loss = oslo::counted_mean(ddp.forward(x).sum(), x.numel(), ddp);
  loss.backward();
  const auto gradient = net->down->bias.grad().clone();
  expect(torch::allclose(gradient, torch::full({6}, 1.0 / 6)), "a counted mean");
  optimizer.zero_grad();
  oslo::counted_mean(ddp.forward(x).sum(), torch::tensor(24), ddp, /*step_count=*/24).backward();
  expect(torch::allclose(net->down->bias.grad(), gradient), "one with the count of its step");
  optimizer.zero_grad();
  oslo::PipelineSchedule schedule(parallel, oslo::PipelineOptions().num_microbatches(2));
  schedule.forward_backward_step({x}, [&](const std::vector<torch::Tensor>& micro) {
    return oslo::counted_mean(net->forward(micro[0]).sum(), micro[0].numel(), schedule);
  });
  expect(torch::allclose(net->down->bias.grad(), gradient), "one in a step");
}

void engines(const oslo::World& world) {
  using Batch = torch::data::Example<>;
  const std::vector<Batch> loader(4, Batch(torch::ones({8, 6}), torch::zeros({8, 6})));
  oslo::InitializeOptions how;
  how.world = world;
  Net net;
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  torch::nn::MSELoss criterion;
  const oslo::Config config = oslo::Config::parse(
      R"({"parallel": {}, "gradient_accumulation": 2, "clip_grad_norm": 1.0,
          "gradient_handler": [{"type": "DataParallelGradientHandler"}]})");
  auto [engine, train_loader] = oslo::initialize(net, optimizer, criterion, loader, config, how);
  engine.train();
  int steps = 0;
  for (auto& batch : train_loader) {
    engine.zero_grad();
    auto output = engine(batch.data);
    auto loss = engine.criterion(output, batch.target);
    engine.backward(loss);
    steps += engine.step() ? 1 : 0;
  }
  expect(steps == 2 && train_loader.size() == 4, "an engine's steps");
  oslo::PipelineSchedule schedule(engine, 2);
  auto data_iterator = train_loader.begin();
  engine.zero_grad();
  auto [output, label, loss] = schedule.forward_backward_step(
      engine, data_iterator, oslo::StepOptions().forward_only(false));
  expect(output.sizes() == label.sizes() && loss.dim() == 0, "an engine's schedule");
  engine.eval();
  using Interleaved = oslo::InterleavedPipelineSchedule;
  static_assert(std::is_constructible_v<Interleaved, decltype(engine)&, int, int>);
}

/// Learning rates; a registered class, by its config, over a pipeline.
struct ChainImpl : oslo::ModelFromConfig {
  explicit ChainImpl(const nlohmann::json& arguments) {
    const int64_t width = arguments.at("width");
    layers_cfg = {{{"type", "Linear"}, {"in_features", 6}, {"out_features", width}},
                  {{"type", "Linear"}, {"in_features", width}, {"out_features", 6}}};
  }
};
TORCH_MODULE(Chain);
OSLO_REGISTER_MODULE(Chain);

void training(const oslo::World& world) {
  const auto model = oslo::build_pipeline_model_from_cfg({{"type", "Chain"}, {"width", 10}}, 1);
  expect(oslo::build_pipeline_model(torch::nn::Sequential(torch::nn::Linear(6, 6)), 2)->size() == 1,
         "a pipeline of a chain");
  using Batch = torch::data::Example<>;
  const std::vector<Batch> loader(2, Batch(torch::ones({8, 6}), torch::zeros({8, 6})));
  torch::optim::SGD optimizer(model->parameters(), 0.5);
  oslo::WarmupCosineLR cosine(optimizer, 10, 2);
  oslo::InitializeOptions how;
  how.world = world;
  auto [engine, train_loader] =
      oslo::initialize(model, optimizer, torch::nn::MSELoss(), loader, oslo::Config(), how);
  torch::optim::LRScheduler& schedule = cosine;
  oslo::Trainer trainer(engine, {std::make_shared<oslo::LRSchedulerHook>(schedule)});
  trainer.fit(train_loader);
  expect(cosine.steps() == 2 && cosine.get_last_lr()[0] == 0.5, "a schedule that warmed up");
  static_assert(std::is_base_of_v<torch::optim::LRScheduler, oslo::WarmupPolynomialLR>);
  static_assert(std::is_base_of_v<torch::optim::LRScheduler, oslo::WarmupLinearLR>);
}

void errors() {
  static_assert(std::is_base_of_v<oslo::Error, oslo::PeerError>);
  static_assert(std::is_base_of_v<oslo::Error, oslo::ConfigError>);
  static_assert(std::is_base_of_v<oslo::Error, oslo::FileError>);
}

}  // namespace

void use_the_contract(const oslo::World& world, const std::string& folder) {
  std::filesystem::create_directories(folder);
  errors();
  configurations();
  grids(world);
  layers(world);
  pipelines(world, folder);
  scaling(world);
  engines(world);
  training(world);
}
