// Colossal-AI's trainer and its builders: a model that a config describes, over pipeline stages,
// trained by a loop with hooks, saved behind each epoch and resumed.
//
//   oslo run -n 2 -- ./trainer [FOLDER]      (two stages; -n 4: with two data ranks beside them)
//
// prints a line for each epoch, the same on any number of ranks, and writes into FOLDER ("trained"
// unless said) the checkpoints, the resolved config and a picture of the loss:
//   epoch 1 of 8  step 7  test/accuracy 0.55  test/loss 1.08...  train/accuracy 0.22
//   train/loss 1.39...
// Started again it goes on from there: nothing is left to do, and it evaluates.
#include <oslo_cpp/oslo.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

/// Points in the plane, of the quarter that they lie in.
class Quarters : public torch::data::Dataset<Quarters> {
 public:
  explicit Quarters(int64_t count) : points_(torch::randn({count, 2}, torch::kDouble)) {}
  torch::data::Example<> get(size_t index) override {
    const torch::Tensor point = points_[static_cast<int64_t>(index)];
    const auto right = point[0].item<double>() > 0, above = point[1].item<double>() > 0;
    return {point, torch::tensor(int64_t{2} * right + above)};
  }
  std::optional<size_t> size() const override { return points_.size(0); }

 private:
  torch::Tensor points_;
};

static auto make_loader(int64_t count) {
  return torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      Quarters(count).map(torch::data::transforms::Stack<>()), torch::data::DataLoaderOptions(16));
}

// @MODELS.register_module
// class MyModel(ModelFromConfig):
struct MyModelImpl : oslo::ModelFromConfig {
  explicit MyModelImpl(const nlohmann::json& arguments) {
    const int64_t width = arguments.at("width");
    // self.layers_cfg = [dict(type='Linear', in_features=2, out_features=width), ...]
    layers_cfg = {{{"type", "Linear"}, {"in_features", 2}, {"out_features", width}},
                  {{"type", "Tanh"}},
                  {{"type", "Linear"}, {"in_features", width}, {"out_features", width}},
                  {{"type", "Tanh"}},
                  {{"type", "Linear"}, {"in_features", width}, {"out_features", 4}}};
  }
};
TORCH_MODULE(MyModel);
OSLO_REGISTER_MODULE(MyModel);

static void train(const std::string& folder) {
  const oslo::World world = oslo::World::from_environment();
  torch::manual_seed(0);
  oslo::Config config = oslo::Config::parse(R"({
      "parallel": {"pipeline": 2},
      "NUM_MICRO_BATCHES": 2,
      "clip_grad_norm": 1.0})");
  if (world.size() == 1) config.set("parallel.pipeline=1");  // the same program alone

  // model = build_pipeline_model_from_cfg(model_cfg, num_chunks=1)
  const nlohmann::json model_cfg = {{"type", "MyModel"}, {"width", 16}};
  oslo::PipelineModel model = oslo::build_pipeline_model_from_cfg(model_cfg, /*num_chunks=*/1);
  model->to(torch::kDouble);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(0.02));
  auto data = make_loader(100), test_data = make_loader(40);

  oslo::InitializeOptions how;
  how.world = world;
  auto [engine, train_loader] =
      oslo::initialize(model, optimizer, torch::nn::CrossEntropyLoss(), data, config, how);
  auto test_loader = engine.test_loader(test_data);

  const int64_t epochs = 8;
  const auto steps = epochs * 7;  // of 100 rows in batches of 16, the last of them short
  oslo::WarmupCosineLR lr_scheduler(optimizer, steps, /*warmup_steps=*/7);
  oslo::Trainer trainer(
      engine,
      {std::make_shared<oslo::AccuracyHook>(),
       std::make_shared<oslo::LRSchedulerHook>(lr_scheduler),
       std::make_shared<oslo::EarlyStoppingHook>(),
       std::make_shared<oslo::LossHook>(folder + "/loss.svg", /*every=*/2),
       std::make_shared<oslo::ProgressHook>(), std::make_shared<oslo::RunConfigHook>(folder),
       std::make_shared<oslo::CheckpointHook>(folder + "/checkpoints", /*every_epochs=*/1,
                                              /*keep_last=*/2),
       std::make_shared<oslo::LogMetricsHook>()});
  if (std::filesystem::exists(folder + "/checkpoints")) trainer.resume(folder + "/checkpoints");
  trainer.fit(train_loader, test_loader, oslo::FitOptions().epochs(epochs));

  const oslo::Metrics metrics = trainer.evaluate(test_loader);
  if (world.rank() == 0) {
    std::cout << "accuracy " << metrics.at("accuracy") << " after " << trainer.training().steps
              << " steps" << std::endl;
  }
}

int main(int argc, char** argv) {
  try {
    if (argc > 2 || (argc == 2 && argv[1][0] == '-')) {
      std::cerr << "usage: trainer [FOLDER]" << std::endl;
      return 2;
    }
    train(argc == 2 ? argv[1] : "trained");
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
