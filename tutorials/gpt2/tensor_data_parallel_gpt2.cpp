// OSLO's "Tensor Model + Data Parallelism Tutorial", section by section and with its numbers; the
// model is an ordinary GPT-2 for one device.
//
//   oslo run -n 4 -- ./tensor_data_parallel_gpt2 --tensor-parallel-size 2 --text sentences.txt
//
// prints a line a step,
//
//   step 1/100  loss 10.8214
//
// and leaves OUT/parallel_ckpt, which ./merge_gpt2 merges. Without a launcher it trains alone.
#include <oslo_cpp/oslo.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <string>
#include <utility>

#include "gpt2_with_labels.h"
#include "step_log.h"
#include "token_batch.h"
#include "tutorial_options.h"

namespace {

// --- 1.2. The MPU: what initialize makes, and every rank's place in it -------------------------

void show_place(const oslo::MPU& mpu) {
  std::printf("rank %d: data %d of %d, tensor %d of %d, pipeline %d of %d\n", mpu.world().rank(),
              mpu.get_data_parallel_rank(), mpu.get_data_parallel_world_size(),
              mpu.get_tensor_parallel_rank(), mpu.get_tensor_parallel_world_size(),
              mpu.get_pipeline_parallel_rank(), mpu.get_pipeline_parallel_world_size());
  std::fflush(stdout);
}

void train(const gpt2::TutorialOptions& options, int tensor_parallel_size) {
  // --- 2.1. Initialize some variables ----------------------------------------------------------
  const auto BATCH_SIZE = static_cast<std::size_t>(options.batch_size);  // 4
  const std::int64_t SEQ_LEN = options.seq_len;                          // 64
  const std::int64_t SAVE_INTERVAL = options.save_interval;              // 50
  const std::int64_t TRAIN_STEP = options.train_step;                    // 100
  const oslo::World world = oslo::World::from_environment();
  const torch::Device device = oslo::local_device(world, options.device);

  // --- 2.2. Create model and optimizer and tokenizer -------------------------------------------
  gpt2::BpeTokenizer tokenizer(options.data + "/gpt2-bpe");  // it pads with its end token
  const gpt2::GPT2Config config = gpt2::tutorial_config(options, tokenizer.vocab_size());
  torch::manual_seed(options.seed);
  gpt2::GPT2WithLabels model(config);
  if (!options.model.empty()) oslo::load_pretrained(model, options.model);
  model->to(device);
  torch::optim::Adam optimizer(model->parameters(), options.learning_rate);

  // --- 2.3. Parallelize the model --------------------------------------------------------------
  // The data-parallel size follows: ranks / tensor_parallel_size.
  oslo::Config parallel_config;
  parallel_config.set("model_parallelism.tensor_parallel_size=" +
                      std::to_string(tensor_parallel_size));
  oslo::InitializeOptions how;
  how.world = world;
  how.example_inputs = [&] {  // any batch: the plan is found by it rather than guessed
    model->forward(gpt2::tokenize(tokenizer, {"an example"}, SEQ_LEN).to(device));
  };
  oslo::ParallelModel parallel = oslo::initialize(model, parallel_config, how);
  const oslo::MPU& mpu = parallel.mpu();
  show_place(mpu);

  // --- 2.4. Make the model data parallelizable -------------------------------------------------
  oslo::DistributedDataParallel<gpt2::GPT2WithLabels> engine(model, mpu.get_data_parallel_group());

  // --- 2.5. Load dataset -----------------------------------------------------------------------
  gpt2::Sentences sentences = gpt2::tutorial_sentences(options);
  const std::size_t wanted = static_cast<std::size_t>(TRAIN_STEP) * BATCH_SIZE;
  if (sentences.size() > wanted) sentences.resize(wanted);
  gpt2::SentenceDataset dataset(std::move(sentences));

  // --- 2.6. Create DistributedSampler to parallelize dataset -----------------------------------
  torch::data::samplers::DistributedRandomSampler sampler(
      *dataset.size(), /*num_replicas=*/mpu.get_data_parallel_world_size(),
      /*rank=*/mpu.get_data_parallel_rank());

  // --- 2.8. Do training as usual ---------------------------------------------------------------
  gpt2::StepLog log(options, world);
  const auto save = [&] {
    parallel.save_parallelized(options.out + "/parallel_ckpt",
                               oslo::SaveOptions().config(config.to_json()));
  };
  std::int64_t step = 0;
  for (std::size_t epoch = 0; step < TRAIN_STEP; ++epoch) {
    // --- 2.7. Create the dataloader with sampler. ----------------------------------------------
    sampler.set_epoch(epoch);
    auto dataloader = torch::data::make_data_loader(dataset, sampler, BATCH_SIZE);

    for (const std::vector<std::string>& batch : *dataloader) {
      optimizer.zero_grad();

      // Make batch
      const gpt2::TokenBatch input_batch = gpt2::tokenize(tokenizer, batch, SEQ_LEN).to(device);

      // Forward-Backward-Step with the DDP engine, not with the model. Batches have unequal numbers
      // of tokens, so that the mean of the ranks' `output.loss` would not be the mean over tokens.
      const gpt2::CausalOutput output = engine.forward(input_batch);
      const torch::Tensor loss = oslo::counted_mean(output.loss_sum, output.tokens, engine);
      loss.backward();
      optimizer.step();

      log.add(++step, loss);

      // Save parallelized model
      if (step % SAVE_INTERVAL == 0 || step == TRAIN_STEP) save();
      if (step == TRAIN_STEP) break;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains GPT-2 with tensor and data parallelism, as OSLO's tutorial does");
  gpt2::TutorialOptions options;
  gpt2::add_options(app, options);
  int tensor_parallel_size = 1;
  app.add_option("--tensor-parallel-size", tensor_parallel_size,
                 "Ranks that share one model; the others are data-parallel")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  try {
    // --- 0. Distributed Launcher: DeepSpeed's and torch's say --local_rank=N ---------------------
    oslo::drop_local_rank(argc, argv);
    CLI11_PARSE(app, argc, argv);
    train(options, tensor_parallel_size);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
