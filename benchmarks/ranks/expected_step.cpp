// One rank of a GPT's training: what the plan expects of forward and backward, and what they take.
//
//   oslo run -n 2 bench_expected_step --hidden 256
//   bench_expected_step --hidden 256              plain LibTorch on one device, nothing expected
//
// Rank 0 prints one line of JSON: the seconds that the plan expects of this job (of two ranks or
// more) and of one device, and the milliseconds of every timed step.
#include <oslo_cpp/oslo.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <nlohmann/json.hpp>

#include "benchmarks/ranks/model.h"

namespace {

struct Options {
  int64_t hidden = 64, layers = 4, heads = 4, positions = 64, vocabulary = 512, batch = 2;
  int warm_up = 5, steps = 40;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times training steps of a GPT beside what the plan expects");
  app.add_option("--hidden", options.hidden);
  app.add_option("--layers", options.layers);
  app.add_option("--batch", options.batch, "Sequences a step");
  app.add_option("--steps", options.steps);
  for (CLI::Option* option : app.get_options()) option->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}

void run(const Options& options) {
  at::set_num_threads(1);
  torch::manual_seed(0);  // initialize insists that the ranks of a model draw the same
  const oslo::World world = oslo::World::from_environment();
  bench::Gpt model(options.vocabulary, options.positions, options.hidden, options.heads,
                   options.layers);
  const auto place = torch::arange(options.batch * options.positions) * 7;
  const auto tokens = place.remainder(options.vocabulary).view({options.batch, options.positions});
  const auto targets = (place + 3).remainder(options.vocabulary);
  const auto loss = [&] {
    const auto logits = model->forward(tokens);
    return torch::nn::functional::cross_entropy(logits.view({-1, options.vocabulary}), targets);
  };

  nlohmann::json result;
  std::shared_ptr<oslo::Group> everyone;
  if (world.size() > 1) {
    oslo::InitializeOptions how;
    how.example_inputs = [&] { loss(); };
    const auto parallel =
        oslo::initialize(model,
                         oslo::Config::parse(c10::str(
                             R"({"model_parallelism": {"enable": true, "tensor_parallel_size": )",
                             world.size(), "}}")),
                         how);
    const oslo::PlanForecast forecast = parallel.plan().forecast;
    result["expected"] = forecast.step;
    result["collectives"] = forecast.collectives;
    result["one_device"] = forecast.one_device;
    everyone = parallel.mpu().tensor_group();
  }
  const auto step = [&] {
    model->zero_grad();
    loss().backward();
  };
  for (int i = 0; i < options.warm_up; ++i) step();
  std::vector<double> milliseconds;
  for (int i = 0; i < options.steps; ++i) {
    if (everyone) everyone->exchange(0);  // begin together
    const auto start = std::chrono::steady_clock::now();
    step();
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - start;
    milliseconds.push_back(taken.count());
  }
  result["milliseconds"] = milliseconds;
  if (world.rank() == 0) std::cout << result << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
