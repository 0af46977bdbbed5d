// One rank of a pipeline: times training steps of a GPT in micro-batches, and what a recorded step
// shows. benchmarks/peers/pipeline_step.py is the same job in Python; benchmarks/report compares
// them.
//
//   oslo run -n 2 bench_pipeline_step --kind 1f1b --micro-batches 8 --hidden 256
//
// Rank 0 prints one line of JSON: the first loss and gradient, by which the two are known to
// compute the same; the milliseconds of every timed step; and of every recorded one the bubble, the
// simulated one, and the largest shares of the step that a rank spent on averaging gradients over
// data replicas and, where two ranks have a stage each, on the other stage's operators.
#include <oslo_cpp/oslo.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "benchmarks/ranks/model.h"
#include "benchmarks/ranks/rank_program.h"
#include "benchmarks/ranks/timed_steps.h"
#include "parallelizers/pipeline/schedule/order/kinds.h"

namespace {

using oslo::pipeline::MeasuredStep;
using oslo::pipeline::Pass;
using oslo::pipeline::Timeline;

struct Options {
  std::string kind = "1f1b";
  int64_t hidden = 64, layers = 4, heads = 4, positions = 64, vocabulary = 512, batch = 16;
  int pipeline = 0, chunks = 0, micro_batches = 8, warm_up = 3, steps = 10, recorded = 5;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times training steps of a pipeline on this rank");
  app.add_option("--kind", options.kind, "Of schedule");
  app.add_option("--hidden", options.hidden);
  app.add_option("--layers", options.layers);
  app.add_option("--batch", options.batch, "Sequences a step");
  app.add_option("--pipeline", options.pipeline, "Stages; 0: as many as ranks, else data replicas");
  app.add_option("--chunks", options.chunks, "Stages a rank; 0: as many as the kind has");
  app.add_option("--micro-batches", options.micro_batches);
  app.add_option("--warm-up", options.warm_up);
  app.add_option("--steps", options.steps);
  app.add_option("--recorded", options.recorded, "Steps to record behind the timed ones");
  bench::parse_or_exit(app, argc, argv);
  return options;
}

/// Of two ranks with a stage each: the first one's forward beyond its send, and the second one's
/// until it waits, are operators of the other stage, on shapes.
double foreign_share(const Timeline& timeline) {
  double most = 0;
  for (size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    double foreign = 0, end = 0, begin = 0;
    for (const Timeline::Event& event : timeline.ranks[rank]) {
      if (event.action.pass != Pass::forward) continue;
      if (event.doing == Timeline::Doing::compute) {
        begin = event.begin;
        end = event.end;
      } else if (rank == 0 && event.doing == Timeline::Doing::send) {
        foreign += end - event.end;
      } else if (rank == 1 && event.doing == Timeline::Doing::wait) {
        foreign += event.begin - begin;
      }
    }
    most = std::max(most, foreign / timeline.span());
  }
  return most;
}

double reduce_share(const Timeline& timeline) {
  double most = 0;
  for (const auto& events : timeline.ranks) {
    double taken = 0;
    for (const Timeline::Event& event : events) {
      if (event.doing == Timeline::Doing::reduce) taken += event.end - event.begin;
    }
    most = std::max(most, taken / timeline.span());
  }
  return most;
}

void run(const Options& options) {
  at::set_num_threads(1);
  torch::manual_seed(0);
  const oslo::World world = oslo::World::from_environment();
  bench::Gpt model(options.vocabulary, options.positions, options.hidden, options.heads,
                   options.layers, /*tied=*/false);
  const auto place = torch::arange(options.batch * options.positions) * 7;
  const auto tokens = place.remainder(options.vocabulary).view({options.batch, options.positions});
  const auto targets = (tokens + 3).remainder(options.vocabulary);
  const auto loss_of = [&](const auto& micro) {
    return torch::nn::functional::cross_entropy(
        model->forward(micro[0]).view({-1, options.vocabulary}), micro[1].view({-1}));
  };
  oslo::InitializeOptions how;
  how.world = world;
  how.example_inputs = [&] { loss_of(std::vector<torch::Tensor>{tokens, targets}); };
  const int ranks = options.pipeline > 0 ? options.pipeline : world.size();
  const int chunks =
      options.chunks > 0 ? options.chunks : oslo::pipeline::default_chunks(options.kind);
  nlohmann::json config;
  config["model_parallelism"] = {{"pipeline_parallel_size", ranks},
                                 {"pipeline_schedule", options.kind},
                                 {"num_model_chunks", chunks}};
  oslo::ParallelModel parallel = oslo::initialize(model, oslo::Config::from_json(config), how);
  oslo::PipelineSchedule schedule(parallel,
                                  oslo::PipelineOptions().num_microbatches(options.micro_batches));
  const auto step = [&](bool record) {
    model->zero_grad();
    return schedule.forward_backward_step({tokens, targets}, loss_of,
                                          oslo::StepOptions().record(record));
  };

  nlohmann::json result;
  result["loss"] = step(false).loss.item<double>();
  if (oslo::is_here(model->wte->weight)) {
    result["gradient"] = oslo::local_tensor(model->wte->weight.grad()).abs().sum().item<double>();
  }
  for (int i = 0; i < options.warm_up; ++i) step(false);
  const oslo::MPU everyone(world);
  const auto barrier = [&] { everyone.data_group()->exchange(0); };  // as tight as the peer's
  result["milliseconds"] = bench::timed_steps(options.steps, barrier, [&] { step(false); });
  std::vector<double> measured, simulated, foreign, reduce;
  for (int i = 0; i < options.recorded; ++i) {
    const MeasuredStep recorded = *step(true).measured;
    measured.push_back(oslo::pipeline::bubble_of(recorded.timeline()));
    simulated.push_back(oslo::pipeline::bubble_of(recorded.simulated()));
    if (ranks == 2 && chunks == 1) foreign.push_back(foreign_share(recorded.timeline()));
    reduce.push_back(reduce_share(recorded.timeline()));
  }
  result["measured"] = measured;
  result["simulated"] = simulated;
  result["foreign"] = foreign;
  result["reduce"] = reduce;
  if (world.rank() == 0) std::cout << result << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  return bench::outcome_of([&] { run(options); });
}
