// Merges the parallel checkpoint that train_gpt2, tensor_parallel_gpt2 and
// tensor_data_parallel_gpt2 leave, over as many ranks as one likes; its sections are those of
// OSLO's tutorials:
//
//   oslo run -n 2 ./merge_gpt2 --checkpoint parallel_ckpt --out merged_ckpt
//
// leaves OUT with model.safetensors, pytorch_model.bin and config.json: whole tensors under the
// names of the model as its author wrote it, as Hugging Face's GPT2LMHeadModel.from_pretrained
// opens them. The command `oslo merge parallel_ckpt merged_ckpt` writes the same without ranks, and
// without the model.
#include <oslo_cpp/oslo.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "gpt2.h"

namespace {

nlohmann::json read_config(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  return nlohmann::json::parse(file);
}

void merge(const std::string& checkpoint, const std::string& out) {
  // --- 3.1. Create model; any weights will do ----------------------------------------------------
  const nlohmann::json config = read_config(checkpoint + "/config.json");
  gpt2::GPT2LMHeadModel model(gpt2::GPT2Config::from_json(config));

  // --- 3.2. Parallelize the model over the ranks of this job, whatever those were that saved -----
  const oslo::World world = oslo::World::from_environment();
  oslo::Config parallel_config;
  parallel_config.set("model_parallelism.tensor_parallel_size=" + std::to_string(world.size()));
  oslo::InitializeOptions how;
  how.world = world;
  how.example_inputs = [&] { model->forward(torch::zeros({1, 8}, torch::kLong)); };
  oslo::ParallelModel parallel = oslo::initialize(model, parallel_config, how);

  // --- 3.3. Load parallelized checkpoints --------------------------------------------------------
  parallel.from_parallelized(checkpoint);

  // --- 3.4. Merge parallelized checkpoints
  // -----------------------------------------------------------
  parallel.save_parallelized(out, oslo::SaveOptions().merge_checkpoints(true).config(config));
  if (world.rank() == 0) std::cout << "merged into " << out << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Merges a parallel checkpoint of a GPT-2");
  std::string checkpoint = "parallel_ckpt", out = "merged_ckpt";
  app.add_option("--checkpoint", checkpoint, "What the training saved")->capture_default_str();
  app.add_option("--out", out, "Folder for the merged checkpoint")->capture_default_str();
  try {
    oslo::drop_local_rank(argc, argv);
    CLI11_PARSE(app, argc, argv);
    torch::manual_seed(0);  // every rank starts with the same model
    merge(checkpoint, out);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
