// Trains an ordinary single-device GPT-2 (gpt2.h) with tensor and data parallelism, saves it in
// parallel, and merges the checkpoint.
//
//   oslo run -n 4 ./train_gpt2 --set model_parallelism.tensor_parallel_size=2
//
// runs 2 x 2: two data ranks, each of two tensor-parallel ranks. It prints a line a step,
//
//   step 1/100  loss 10.8214  1234 tokens/s  612 MiB on rank 0
//
// and leaves OUT/parallel_ckpt, which ./merge_gpt2 merges, and OUT/merged_ckpt for Hugging Face;
// ./generate_gpt2 samples from the latter.
// Without a launcher it trains in one process. The losses do not depend on how many ranks share the
// work.
#include <oslo_cpp/oslo.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bpe_tokenizer.h"
#include "global_batch_sampler.h"
#include "gpt2.h"
#include "text_dataset.h"

namespace {

// --- 1. Variables --------------------------------------------------------------------------------

struct Options {
  std::string config_file;
  std::vector<std::string> settings;
  std::size_t batch_size = 8;  // global: of all data ranks together
  std::int64_t seq_len = 64;
  int micro_batches = 4;  // that a pipeline divides a rank's batch into
  std::int64_t steps = 100;
  std::int64_t save_every = 50;
  std::int64_t layers = 2, hidden = 128, heads = 4;
  double dropout = 0.0;
  double learning_rate = 1e-3;
  std::uint64_t seed = 0;
  std::string data = OSLO_TUTORIAL_DATA;
  std::string out = ".";
  std::string losses;
  std::string timeline;
  std::string device = "cpu";
  bool resume = false;
  bool print_plan = false;
  bool verify = false;
};

void add_options(CLI::App& app, Options& options) {
  app.add_option("--config", options.config_file, "Parallel configuration, a JSON file");
  app.add_option("--set", options.settings,
                 "Changes one entry of it, e.g. model_parallelism.tensor_parallel_size=2");
  app.add_option("--batch-size", options.batch_size, "Sequences a step, over all data ranks");
  app.add_option("--seq-len", options.seq_len, "Tokens a sequence");
  app.add_option("--micro-batches", options.micro_batches,
                 "Parts of a batch, where the configuration has a pipeline");
  app.add_option("--steps", options.steps, "Steps in all, those before --resume included");
  app.add_option("--save-every,--save-interval", options.save_every, "Steps between checkpoints");
  app.add_option("--layers", options.layers);
  app.add_option("--hidden", options.hidden);
  app.add_option("--heads", options.heads);
  app.add_option("--dropout", options.dropout, "With 0, runs of any layout are comparable");
  app.add_option("--lr", options.learning_rate, "AdamW's learning rate");
  app.add_option("--seed", options.seed, "Of the initial weights");
  app.add_option("--data", options.data, "Folder with tinyshakespeare.txt and the vocabulary");
  app.add_option("--out", options.out, "Folder for the checkpoints");
  app.add_option("--losses", options.losses, "File for the losses, one a line");
  app.add_option("--timeline", options.timeline,
                 "File for a Chrome trace of the last step, for ui.perfetto.dev and "
                 "oslo schedule --measured; where the configuration has a pipeline");
  app.add_option("--device", options.device,
                 "cpu, cuda (a GPU for each rank) or cuda:0 (one that the ranks share)");
  app.add_flag("--resume", options.resume,
               "Go on from OUT/parallel_ckpt as if the run had not ended");
  app.add_flag("--print-plan", options.print_plan, "Print where each parameter lives");
  app.add_flag("--verify", options.verify,
               "First compare with the model on one device, operator by operator; stop with exit "
               "code 1 if they differ (needs the memory of the whole model on every rank)")
      ->excludes("--resume");
  for (CLI::Option* option : app.get_options()) option->capture_default_str();
}

oslo::Config parallel_config(const Options& options) {
  oslo::Config config;  // nothing said: all ranks are data-parallel
  if (!options.config_file.empty()) config = oslo::Config::from_file(options.config_file);
  for (const std::string& setting : options.settings) config.set(setting);
  return config;
}

// A killed run may have written the losses of steps that it did not save.
std::string first_lines(const std::string& path, std::int64_t count) {
  std::ifstream file(path);
  std::string text;
  for (std::string line; count-- > 0 && std::getline(file, line);) text += line + "\n";
  return text;
}

// The mean of a number over the data-parallel ranks.
double mean_over_data_ranks(const torch::Tensor& value, const oslo::MPU& mpu) {
  const torch::Tensor own = oslo::full_tensor(value.detach()).clone();
  const torch::Tensor sum = mpu.data_group()->all_reduce(own);
  return sum.item<double>() / mpu.get_data_parallel_world_size();
}

// What the ranks did when, in the last step: printed, and as a file.
void show(const oslo::pipeline::MeasuredStep& step, const std::string& path) {
  std::ofstream file(path);
  file << step.chrome_trace() << std::flush;
  if (!file) throw std::runtime_error("cannot write " + path);
  std::printf(
      "\n%s\nthe last step's timeline is in %s: ui.perfetto.dev shows it, and\n"
      "oslo schedule --measured %s --svg step.svg\n\n",
      step.report().c_str(), path.c_str(), path.c_str());
  std::fflush(stdout);
}

// The parallel model against an untouched one of the same seed.
void verify(const oslo::ParallelModel& parallel, const gpt2::GPT2LMHeadModel& on_one_device,
            const torch::Tensor& tokens) {
  const oslo::Verification verification = oslo::verify(parallel, on_one_device, tokens);
  if (parallel.mpu().world().rank() == 0) std::cout << verification.to_string() << std::flush;
  if (!verification.equal()) throw std::runtime_error("--verify: the two models differ");
}

void train(const Options& options) {
  // --- 2. The model: plain LibTorch, the same weights on every rank ------------------------------
  gpt2::BpeTokenizer tokenizer(options.data + "/gpt2-bpe");
  gpt2::GPT2Config shape;
  shape.vocab_size = tokenizer.vocab_size();
  shape.n_positions = options.seq_len;
  shape.n_embd = options.hidden;
  shape.n_layer = options.layers;
  shape.n_head = options.heads;
  shape.embd_pdrop = shape.attn_pdrop = shape.resid_pdrop = options.dropout;
  const oslo::World world = oslo::World::from_environment();
  const torch::Device device = oslo::local_device(world, options.device);
  const auto make_model = [&] {
    torch::manual_seed(options.seed);
    gpt2::GPT2LMHeadModel made(shape);
    made->to(device);
    return made;
  };
  gpt2::GPT2LMHeadModel model = make_model();

  // --- 3. Parallelize it: this process keeps its shards only -------------------------------------
  oslo::InitializeOptions how;
  how.world = world;
  // So that the plan is found rather than guessed: shapes are all it takes from this, those of what
  // a rank computes at a time.
  const oslo::Config config = parallel_config(options);
  const oslo::ParallelSizes sizes = config.resolve(world.size());
  const std::int64_t parts = sizes.data * (sizes.pipeline > 1 ? options.micro_batches : 1);
  const std::int64_t rows = std::max<std::int64_t>(1, options.batch_size / parts);
  const auto tokens_like = torch::dtype(torch::kLong).device(device);
  how.example_inputs = [&] { model->forward(torch::zeros({rows, options.seq_len}, tokens_like)); };
  oslo::ParallelModel parallel = oslo::initialize(model, config, how);
  const oslo::MPU& mpu = parallel.mpu();
  const bool speaker = world.rank() == 0;
  const std::filesystem::path out = options.out;
  if (options.print_plan) {
    const std::string plan = parallel.plan().to_string();
    if (speaker) std::cout << plan << std::endl;
  }
  if (options.verify) {
    verify(parallel, make_model(),
           torch::arange(2 * options.seq_len, tokens_like).view({2, options.seq_len}));
  }

  // --- 4. Make it data parallel; a pipeline's schedule does that itself ------------------------
  const bool pipeline = mpu.get_pipeline_parallel_world_size() > 1;
  std::optional<oslo::DistributedDataParallel<gpt2::GPT2LMHeadModel>> ddp;
  std::optional<oslo::PipelineSchedule> schedule;
  if (!pipeline && !options.timeline.empty()) {
    throw std::runtime_error(
        "--timeline shows a pipeline's step, and the configuration has none: "
        "--set model_parallelism.pipeline_parallel_size=2");
  }
  if (pipeline) {
    schedule.emplace(parallel, oslo::PipelineOptions().num_microbatches(options.micro_batches));
  } else {
    ddp.emplace(model, mpu.get_data_parallel_group());
  }
  const auto loss_of = [&](const torch::Tensor& logits, const torch::Tensor& target) {
    return torch::nn::functional::cross_entropy(logits.view({-1, shape.vocab_size}),
                                                target.reshape({-1}));
  };
  const torch::optim::AdamWOptions rate(options.learning_rate);
  std::unique_ptr<torch::optim::AdamW> owned;
  if (config.values().zero_optimization) {  // a data rank keeps a share of AdamW's moments
    owned = std::make_unique<oslo::ZeroOptimizer<torch::optim::AdamW>>(parallel, rate);
  } else {
    owned = std::make_unique<torch::optim::AdamW>(model->parameters(), rate);
  }
  torch::optim::AdamW& optimizer = *owned;
  const std::string checkpoint = out / "parallel_ckpt";
  std::int64_t step = 0;
  if (options.resume) {
    // Weights, AdamW's moments, random generators and the step are all of one save.
    nlohmann::json extra;
    parallel.from_parallelized(checkpoint, oslo::LoadOptions().optimizer(&optimizer).extra(&extra));
    step = extra.at("step").get<std::int64_t>();
  }

  // --- 5. The data: a sampler by the mpu's ranks (over torch's DistributedRandomSampler) -------
  auto text = gpt2::TextDataset::from_file(options.data + "/tinyshakespeare.txt", tokenizer,
                                           options.seq_len);
  gpt2::GlobalBatchSampler sampler(*text.size(), options.batch_size,
                                   mpu.get_data_parallel_world_size(),
                                   mpu.get_data_parallel_rank());
  const auto examples = text.map(torch::data::transforms::Stack<>());
  const auto steps_per_epoch = static_cast<std::int64_t>(sampler.steps_per_epoch());

  // --- 6. Train as usual, but call the DDP engine, not the model, or hand the schedule a batch ---
  const auto save = [&] {
    // All or nothing, whenever this process dies.
    parallel.save_parallelized(
        checkpoint,
        oslo::SaveOptions().optimizer(&optimizer).extra({{"step", step}}).config(shape.to_json()));
  };
  if (speaker) std::filesystem::create_directories(out);
  world.barrier();
  std::ofstream losses;
  if (speaker && !options.losses.empty()) {
    const std::string before = first_lines(options.losses, step);
    losses.open(options.losses);
    losses << before << std::flush;
    if (!losses) throw std::runtime_error("cannot write " + options.losses);
  }

  model->train();
  while (step < options.steps) {
    sampler.set_epoch(static_cast<std::size_t>(step / steps_per_epoch));
    sampler.start_at(static_cast<std::size_t>(step % steps_per_epoch));
    auto loader = torch::data::make_data_loader(examples, sampler, sampler.local_batch());
    for (auto& batch : *loader) {
      if (step == options.steps) break;
      const auto start = std::chrono::steady_clock::now();

      optimizer.zero_grad();
      const torch::Tensor data = batch.data.to(device), target = batch.target.to(device);
      torch::Tensor loss;
      if (pipeline) {
        const bool records = !options.timeline.empty() && step + 1 == options.steps;
        const oslo::StepResult result = schedule->forward_backward_step(
            {data, target},
            [&](const auto& micro) { return loss_of(model->forward(micro[0]), micro[1]); },
            oslo::StepOptions().record(records));
        if (records && speaker) show(*result.measured, options.timeline);
        loss = result.loss;
      } else {
        loss = loss_of(ddp->forward(data), target);
        loss.backward();
      }
      parallel.clip_grad_norm_(1.0);
      optimizer.step();

      ++step;
      const double mean_loss = mean_over_data_ranks(loss, mpu);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      if (speaker) {
        const double tokens = static_cast<double>(options.batch_size) * options.seq_len;
        std::printf("step %ld/%ld  loss %.4f  %.0f tokens/s  %ld MiB on rank 0\n",
                    static_cast<long>(step), static_cast<long>(options.steps), mean_loss,
                    tokens / seconds.count(), static_cast<long>(oslo::memory_held(device) >> 20));
        std::fflush(stdout);
        if (losses.is_open()) losses << std::setprecision(9) << mean_loss << std::endl;
      }
      if (step % options.save_every == 0) save();
    }
  }
  if (step % options.save_every != 0) save();

  // --- 7. Merge: one folder, which Hugging Face's GPT2LMHeadModel.from_pretrained opens --------
  oslo::save_pretrained(parallel, out / "merged_ckpt",
                        oslo::PretrainedOptions().config(shape.to_json()));
  if (speaker) std::printf("merged into %s\n", (out / "merged_ckpt").c_str());
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains GPT-2 on tinyshakespeare with tensor, data and pipeline parallelism");
  Options options;
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  try {
    train(options);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
