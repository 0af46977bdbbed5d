// OSLO's "Tensor Model Parallelism Tutorial": one model over all ranks, which generates text and is
// trained; its third part, merging, is ./merge_gpt2.
//
//   oslo run -n 2 -- ./tensor_parallel_gpt2 --prompt "ROMEO:" --text sentences.txt
//
// prints the prompt with its continuation, then a line a step, and leaves OUT/parallel_ckpt.
// `--train-step 0` only generates, `--tokens 0` only trains. The numbers of the sections are those
// of the program beside it, tensor_data_parallel_gpt2.cpp, which has data ranks as well.
#include <oslo_cpp/oslo.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>
#include <utility>

#include "gpt2_with_labels.h"
#include "step_log.h"
#include "token_batch.h"
#include "tutorial_options.h"

namespace {

struct Inference {
  std::string prompt = "ROMEO:";
  std::int64_t tokens = 20;
};

/// A model over all ranks: what both parts of the tutorial begin with.
oslo::ParallelModel parallelized(gpt2::GPT2WithLabels& model, const oslo::World& world,
                                 const gpt2::TokenBatch& example) {
  oslo::Config parallel_config;
  parallel_config.set("model_parallelism.tensor_parallel_size=" + std::to_string(world.size()));
  oslo::InitializeOptions how;
  how.world = world;
  how.example_inputs = [&] { model->forward(example); };
  return oslo::initialize(model, parallel_config, how);
}

// --- 1. Inference --------------------------------------------------------------------------------

void generate(gpt2::GPT2WithLabels& model, gpt2::BpeTokenizer& tokenizer, const oslo::World& world,
              const torch::Device& device, const Inference& inference) {
  // Every rank computes the same tokens: the likeliest one each time.
  generation::GenerateOptions likeliest;
  likeliest.temperature = 0;
  const torch::Tensor prompt =
      torch::tensor(tokenizer.encode(inference.prompt), torch::kInt64).to(device).unsqueeze(0);
  const torch::Tensor ids = model->generate(prompt, inference.tokens, likeliest)[0].cpu();
  const auto* const first = ids.const_data_ptr<std::int64_t>();
  if (world.rank() == 0) {
    std::cout << tokenizer.decode({first, first + ids.numel()}) << std::endl;
  }
}

// --- 2. Training ---------------------------------------------------------------------------------

void train(const gpt2::TutorialOptions& options, const gpt2::GPT2Config& config,
           gpt2::BpeTokenizer& tokenizer, gpt2::GPT2WithLabels& model,
           torch::optim::Optimizer& optimizer, const oslo::ParallelModel& parallel,
           const torch::Device& device) {
  // 2.5. Load dataset
  const auto batch_size = static_cast<std::size_t>(options.batch_size);
  gpt2::Sentences sentences = gpt2::tutorial_sentences(options);
  const std::size_t wanted = static_cast<std::size_t>(options.train_step) * batch_size;
  if (sentences.size() > wanted) sentences.resize(wanted);
  gpt2::SentenceDataset dataset(std::move(sentences));

  // 2.6. All ranks train on the same batches: one model, one data rank
  torch::data::samplers::DistributedRandomSampler sampler(*dataset.size());

  gpt2::StepLog log(options, parallel.mpu().world());
  std::int64_t step = 0;
  for (std::size_t epoch = 0; step < options.train_step; ++epoch) {
    // 2.7. Create the dataloader
    sampler.set_epoch(epoch);
    auto dataloader = torch::data::make_data_loader(dataset, sampler, batch_size);

    // 2.8. Do training as usual
    for (const std::vector<std::string>& batch : *dataloader) {
      optimizer.zero_grad();
      const auto input_batch = gpt2::tokenize(tokenizer, batch, options.seq_len).to(device);
      const torch::Tensor loss = model->forward(input_batch).loss;
      loss.backward();
      optimizer.step();

      log.add(++step, loss);
      if (step % options.save_interval == 0 || step == options.train_step) {
        parallel.save_parallelized(options.out + "/parallel_ckpt",
                                   oslo::SaveOptions().config(config.to_json()));
      }
      if (step == options.train_step) break;
    }
  }
}

void run(const gpt2::TutorialOptions& options, const Inference& inference) {
  // 2.2. Create model and optimizer and tokenizer
  const oslo::World world = oslo::World::from_environment();
  const torch::Device device = oslo::local_device(world, options.device);
  gpt2::BpeTokenizer tokenizer(options.data + "/gpt2-bpe");
  const gpt2::GPT2Config config = gpt2::tutorial_config(options, tokenizer.vocab_size());
  torch::manual_seed(options.seed);
  gpt2::GPT2WithLabels model(config);
  if (!options.model.empty()) oslo::load_pretrained(model, options.model);
  model->to(device);
  torch::optim::Adam optimizer(model->parameters(), options.learning_rate);

  // 2.3. Parallelize the model
  const auto example = gpt2::tokenize(tokenizer, {"an example"}, options.seq_len).to(device);
  const oslo::ParallelModel parallel = parallelized(model, world, example);

  if (inference.tokens > 0) generate(model, tokenizer, world, device, inference);
  train(options, config, tokenizer, model, optimizer, parallel, device);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Generates with and trains a GPT-2 over all ranks, as OSLO's tutorial does");
  gpt2::TutorialOptions options;
  gpt2::add_options(app, options);
  Inference inference;
  app.add_option("--prompt", inference.prompt, "Text to continue")->capture_default_str();
  app.add_option("--tokens", inference.tokens, "Tokens to add; 0: do not generate")
      ->capture_default_str();
  try {
    oslo::drop_local_rank(argc, argv);
    CLI11_PARSE(app, argc, argv);
    run(options, inference);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
