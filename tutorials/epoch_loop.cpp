// Colossal-AI's training loop: one call gives an engine and a loader, a schedule runs the batches
// over pipeline stages, and the config says what a step does.
//
//   oslo run -n 2 -- ./epoch_loop       (two stages; -n 4: with two data ranks beside them)
//
// (--device cuda: on a GPU for each rank) prints the losses, which are those of ./epoch_loop alone
// on any number of ranks, and how much of the data the trained model gets right:
//   epoch 0  loss 1.2...
//   correct: 9... of 100
#include <oslo_cpp/oslo.h>

#include <iostream>
#include <string>

#include "device_option.h"

/// Points in the plane, of the quarter that they lie in.
class Quarters : public torch::data::Dataset<Quarters> {
 public:
  explicit Quarters(torch::Device device)
      : points_(torch::randn({100, 2}, torch::kDouble).to(device)) {}
  torch::data::Example<> get(size_t index) override {
    const torch::Tensor point = points_[static_cast<int64_t>(index)];
    const auto right = point[0].item<double>() > 0, above = point[1].item<double>() > 0;
    return {point, torch::tensor(int64_t{2} * right + above).to(points_.device())};
  }
  std::optional<size_t> size() const override { return points_.size(0); }

 private:
  torch::Tensor points_;
};

static void train(const std::string& device_name) {
  const oslo::World world = oslo::World::from_environment();
  const torch::Device device = oslo::local_device(world, device_name);
  torch::manual_seed(0);

  // The config: as in Colossal-AI, a dictionary of sizes, and keys of the engine beside it.
  oslo::Config config = oslo::Config::parse(R"({
      "parallel": {"pipeline": {"size": 2}},
      "NUM_MICRO_BATCHES": 2,
      "gradient_accumulation": 2,
      "clip_grad_norm": 1.0})");
  if (world.size() == 1) config.set("parallel.pipeline.size=1");  // the same program alone

  // Model, optimizer, criterion and loader are those of a program for one device. The last of 7
  // batches is a short one, and makes no step of 2.
  torch::nn::Sequential model(torch::nn::Linear(2, 16), torch::nn::Tanh(),
                              torch::nn::Linear(16, 16), torch::nn::Tanh(),
                              torch::nn::Linear(16, 4));
  model->to(device, torch::kDouble);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
  torch::optim::StepLR lr_scheduler(optimizer, /*step_size=*/40, /*gamma=*/0.5);
  const auto criterion = [](const torch::Tensor& output, const torch::Tensor& label) {
    namespace F = torch::nn::functional;
    const auto options = F::CrossEntropyFuncOptions().reduction(torch::kSum);
    return oslo::CountedLoss{F::cross_entropy(output, label, options), label.numel()};
  };
  auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      Quarters(device).map(torch::data::transforms::Stack<>()), torch::data::DataLoaderOptions(16));

  // engine, train_dataloader, _, _ = colossalai.initialize(model, optimizer, criterion, loader)
  oslo::InitializeOptions how;
  how.world = world;
  auto [engine, train_loader] = oslo::initialize(model, optimizer, criterion, loader, config, how);

  // schedule = PipelineSchedule(num_microbatches=2)
  oslo::PipelineSchedule schedule(engine);

  for (int epoch = 0; epoch < 30; ++epoch) {
    engine.train();
    double last_loss = 0;
    // data_iter = iter(train_dataloader)
    auto data_iterator = train_loader.begin();
    while (data_iterator != train_loader.end()) {
      engine.zero_grad();
      // output, label, loss = schedule.forward_backward_step(engine, data_iter, forward_only=False)
      auto [output, label, loss] = schedule.forward_backward_step(
          engine, data_iterator, oslo::StepOptions().forward_only(false));
      if (engine.step()) lr_scheduler.step();
      last_loss = loss.item<double>();
    }
    if (world.rank() == 0 && epoch % 3 == 0) {
      std::cout << "epoch " << epoch << "  loss " << last_loss << std::endl;
    }
  }

  engine.eval();
  torch::Tensor counts = torch::zeros({2}, torch::kLong);  // right, all
  auto test_loader = engine.test_loader(loader);
  for (auto at = test_loader.begin(); at != test_loader.end();) {
    auto [output, label, loss] =
        schedule.forward_backward_step(engine, at, oslo::StepOptions().forward_only(true));
    if (output.defined())
      counts +=
          torch::stack({(output.argmax(1) == label).sum().cpu(), torch::tensor(label.numel())});
  }
  const oslo::MPU& mpu = engine.parallel().mpu();
  if (!mpu.is_pipeline_last_stage()) return;  // which has no outputs
  counts = mpu.data_group()->all_reduce(counts);
  if (mpu.get_data_parallel_rank() == 0) {
    std::cout << "correct: " << counts[0].item<int64_t>() << " of " << counts[1].item<int64_t>()
              << std::endl;
  }
}

int main(int argc, char** argv) {
  try {
    train(device_option(argc, argv));
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
