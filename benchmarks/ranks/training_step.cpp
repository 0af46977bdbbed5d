// One rank of a training job: times forward and backward of a GPT, tensor or data parallel.
// benchmarks/peers/training_step.py is the same job in Python; benchmarks/report compares them.
//
//   oslo run -n 2 bench_training_step --parallel tensor --hidden 256
//   oslo run -n 2 bench_training_step --parallel sequence        "tensor" with its stream cut
//   oslo run -n 2 bench_training_step --parallel automatic       by the plan's own search
//   bench_training_step --parallel none                          plain LibTorch
//   oslo run -n 2 bench_training_step --words                    "tensor" with its table cut, too
//   oslo run -n 2 bench_training_step --parallel none --parts 2  each a plain model of a part's
//   sizes oslo run -n 2 bench_training_step --overlap on --trace step.json    a step's timeline, by
//   rank
//
// Rank 0 prints one line of JSON: the first loss and gradient, by which the two are known to
// compute the same, the milliseconds of every timed step, of this rank the page faults of a step
// and the bytes that are resident behind the steps and at most, and of an automatic plan the
// seconds that it expects of this job and of one device.
#include <oslo_cpp/oslo.h>

#include <torch/csrc/autograd/profiler_kineto.h>
#include <CLI/CLI.hpp>
#include <filesystem>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "benchmarks/ranks/model.h"
#include "benchmarks/ranks/peer_plan.h"
#include "benchmarks/ranks/rank_program.h"
#include "benchmarks/ranks/system_memory.h"
#include "benchmarks/ranks/timed_steps.h"
#include "mpu/collectives/overlap.h"

namespace {

struct Options {
  std::string parallel = "tensor";
  int64_t hidden = 64, layers = 4, heads = 4, positions = 64, vocabulary = 512, batch = 2,
          parts = 1;
  bool words = false;
  double bucket_mb = 25;
  int warm_up = 5, steps = 40;
  std::string device = "cpu";
  std::string overlap = "where it pays", trace;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("Times forward and backward of a GPT on this rank");
  app.add_option("--parallel", options.parallel)
      ->check(CLI::IsMember({"tensor", "sequence", "automatic", "data", "none"}));
  app.add_option("--hidden", options.hidden);
  app.add_option("--layers", options.layers);
  app.add_option("--batch", options.batch, "Sequences a rank");
  app.add_flag("--words", options.words, "Of tensor: cut the table, which is the head, as well");
  app.add_option("--parts", options.parts,
                 "Of none: a model of the sizes that one of so many ranks has, which computes "
                 "something else")
      ->check(CLI::PositiveNumber);
  app.add_option("--bucket-mb", options.bucket_mb, "DistributedDataParallel's buckets");
  app.add_option("--warm-up", options.warm_up);
  app.add_option("--steps", options.steps);
  app.add_option("--device", options.device, "cpu, cuda (a GPU for each rank) or cuda:0");
  app.add_option("--overlap", options.overlap,
                 "Start the collectives of backward early and compute weights' gradients meanwhile")
      ->check(CLI::IsMember({"where it pays", "on", "off"}));
  app.add_option("--trace", options.trace,
                 "Profile one more step into FILE, with the rank before its extension; open it in "
                 "ui.perfetto.dev")
      ->type_name("FILE");
  bench::parse_or_exit(app, argc, argv);
  return options;
}

/// `step` as LibTorch's profiler sees it: operators, the graph's nodes, collectives, each on the
/// thread that computes it, and the kernels of a GPU.
void trace(const std::function<void()>& step, const std::filesystem::path& file, int rank,
           bool cuda) {
  namespace profiler = torch::autograd::profiler;
  using torch::profiler::impl::ActivityType;
  torch::profiler::impl::ExperimentalConfig how;
  how.profile_all_threads = true;  // a started collective runs on a thread of its own
  const torch::profiler::impl::ProfilerConfig config(
      torch::profiler::impl::ProfilerState::KINETO, /*report_input_shapes=*/true,
      /*profile_memory=*/false, /*with_stack=*/false, /*with_flops=*/false, /*with_modules=*/false,
      how);
  std::set<ActivityType> activities{ActivityType::CPU};
  if (cuda) activities.insert(ActivityType::CUDA);
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  step();
  const std::string name = c10::str(file.stem().string(), ".", rank, file.extension().string());
  profiler::disableProfiler()->save((file.parent_path() / name).string());
}

void run(const Options& options) {
  at::set_num_threads(1);
  std::optional<oslo::OverlapScope> overlap;
  if (options.overlap != "where it pays") overlap.emplace(options.overlap == "on");
  torch::manual_seed(0);  // initialize insists that the ranks of a model draw the same
  const oslo::World world = oslo::World::from_environment();
  const torch::Device device = oslo::local_device(world, options.device);
  bench::Gpt model(options.vocabulary, options.positions, options.hidden, options.heads,
                   options.layers, /*tied=*/true, options.parts);
  model->to(device);
  const bool by_data = options.parallel == "data";
  // Another batch on every data rank, the same on all tensor ranks.
  const int64_t shift = by_data ? world.rank() : 0;
  const auto place = torch::arange(options.batch * options.positions, device) * 7 + shift;
  const int64_t words = options.vocabulary / options.parts;
  const auto tokens = place.remainder(words).view({options.batch, options.positions});
  const auto targets = (place + 3).remainder(words);

  const auto loss_of = [&](const torch::Tensor& logits) {
    return torch::nn::functional::cross_entropy(logits.view({-1, words}), targets);
  };

  nlohmann::json result;
  std::optional<oslo::ParallelModel> parallel;
  std::optional<oslo::DistributedDataParallel<bench::Gpt>> ddp;
  oslo::InitializeOptions how;
  how.world = world;
  if (options.parallel == "tensor") {
    parallel = oslo::initialize(model, bench::cut_like_the_peer(world.size(), options.words), how);
  } else if (options.parallel == "sequence") {
    how.example_inputs = [&] { loss_of(model->forward(tokens)); };
    oslo::Config config = bench::cut_like_the_peer(world.size());
    config.set("sequence_parallel=true");
    parallel = oslo::initialize(model, config, how);
  } else if (options.parallel == "automatic") {
    how.example_inputs = [&] { loss_of(model->forward(tokens)); };
    const std::string size = std::to_string(world.size());
    parallel = oslo::initialize(
        model,
        oslo::Config::parse(R"({"model_parallelism": {"tensor_parallel_size": )" + size + "}}"),
        how);
    result["expected"] = parallel->plan().forecast.step;
    result["one_device"] = parallel->plan().forecast.one_device;
  } else if (by_data) {
    const oslo::MPU mpu(world);
    ddp.emplace(model, mpu.get_data_parallel_group(),
                oslo::DDPOptions().bucket_cap_mb(options.bucket_mb));
  }
  const auto step = [&] {
    model->zero_grad();
    const auto loss = loss_of(ddp ? ddp->forward(tokens) : model->forward(tokens));
    loss.backward();
    return loss;
  };

  result["loss"] = step().item<double>();
  result["gradient"] = model->wte->weight.grad().abs().sum().item<double>();
  const auto finish = [&] {
    if (device.is_cuda()) torch::cuda::synchronize(device.index());
  };
  for (int i = 0; i < options.warm_up; ++i) step();
  finish();
  const oslo::MPU everyone(world);
  const auto barrier = [&] { everyone.data_group()->exchange(0); };  // as tight as the peer's
  const auto before = bench::SystemMemory::now();
  result["milliseconds"] = bench::timed_steps(options.steps, barrier, [&] { step(), finish(); });
  const auto after = bench::SystemMemory::now();
  result["faults_a_step"] = static_cast<double>(after.faults - before.faults) / options.steps;
  result["resident"] = after.resident;
  result["resident_most"] = after.most;
  if (!options.trace.empty()) {
    trace([&] { step(), finish(); }, options.trace, world.rank(), device.is_cuda());
  }
  if (world.rank() == 0) std::cout << result << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  return bench::outcome_of([&] { run(options); });
}
