// Samples from the merged checkpoint of train_gpt2, in one process and with the plain model:
//
//   ./generate_gpt2 --checkpoint merged_ckpt --prompt "ROMEO:"
//
// prints the prompt and its continuation. Works on any folder of Hugging Face's GPT-2: config.json
// and model.safetensors or pytorch_model.bin.
#include <oslo_cpp/pretrained.h>
#include <torch/nn.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "bpe_tokenizer.h"
#include "gpt2.h"

namespace {

gpt2::GPT2Config read_config(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path);
  return gpt2::GPT2Config::from_json(nlohmann::json::parse(file, nullptr, false));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Samples from a GPT-2 checkpoint");
  std::string checkpoint = "merged_ckpt", prompt = "ROMEO:", data = OSLO_TUTORIAL_DATA,
              device = "cpu";
  std::int64_t tokens = 60;
  std::uint64_t seed = 0;
  generation::GenerateOptions how;
  how.temperature = 0.8;
  how.top_k = 40;
  app.add_option("--checkpoint", checkpoint, "Folder with config.json and the merged model");
  app.add_option("--prompt", prompt, "Text to continue");
  app.add_option("--tokens", tokens, "Tokens to add");
  app.add_option("--temperature", how.temperature, "0: always the likeliest token");
  app.add_option("--top-k", how.top_k, "Sample among the k likeliest; 0: among all");
  app.add_option("--seed", seed);
  app.add_option("--device", device, "cpu or cuda");
  app.add_option("--data", data, "Folder with gpt2-bpe/encoder.json and vocab.bpe");
  for (CLI::Option* option : app.get_options()) option->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    gpt2::BpeTokenizer tokenizer(data + "/gpt2-bpe");
    gpt2::GPT2LMHeadModel model(read_config(checkpoint + "/config.json"));
    oslo::load_pretrained(model, checkpoint);
    model->to(torch::Device(device));

    std::vector<std::int64_t> ids = tokenizer.encode(prompt);
    if (ids.empty()) ids.push_back(tokenizer.end_of_text());
    torch::manual_seed(seed);
    const torch::Tensor sample =
        model->generate(torch::tensor(ids, torch::kInt64).to(device).unsqueeze(0), tokens, how)
            .squeeze(0)
            .cpu();
    std::cout << tokenizer.decode({sample.const_data_ptr<std::int64_t>(),
                                   sample.const_data_ptr<std::int64_t>() + sample.numel()})
              << std::endl;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
