// Samples from the merged checkpoint of train_gpt2, in one process and with the plain model:
//
//   ./generate_gpt2 --checkpoint merged_ckpt --prompt "ROMEO:"
//
// prints the prompt and its continuation. Works on any folder with GPT-2's config.json and
// model.safetensors under the names of gpt2.h.
#include <c10/util/StringUtil.h>
#include <checkpoint/safetensors.h>
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

// Every parameter must be in the file, and every tensor of the file must be a parameter.
void load_strictly(gpt2::GPT2LMHeadModel& model, const std::string& path) {
  torch::NoGradGuard no_grad;
  const oslo::StateDict file = oslo::read_safetensors(path);
  const auto parameters = model->named_parameters();
  for (const auto& [name, tensor] : file) {
    if (!parameters.contains(name)) {
      throw std::runtime_error(path + ": the model has no parameter " + name);
    }
  }
  for (const auto& parameter : parameters) {
    // Tied: the head computes with wte's weight, and files may leave its own name out.
    if (parameter.key() == "lm_head.weight") continue;
    const torch::Tensor& tensor = file.at(parameter.key());
    if (tensor.sizes() != parameter.value().sizes()) {
      throw std::runtime_error(c10::str(path, ": ", parameter.key(), " is ", tensor.sizes(),
                                        ", by config.json it is ", parameter.value().sizes()));
    }
    parameter.value().copy_(tensor);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Samples from a GPT-2 checkpoint");
  std::string checkpoint = "merged_ckpt", prompt = "ROMEO:", data = OSLO_TUTORIAL_DATA;
  std::int64_t tokens = 60;
  std::uint64_t seed = 0;
  gpt2::GenerateOptions how;
  how.temperature = 0.8;
  how.top_k = 40;
  app.add_option("--checkpoint", checkpoint, "Folder with config.json and model.safetensors");
  app.add_option("--prompt", prompt, "Text to continue");
  app.add_option("--tokens", tokens, "Tokens to add");
  app.add_option("--temperature", how.temperature, "0: always the likeliest token");
  app.add_option("--top-k", how.top_k, "Sample among the k likeliest; 0: among all");
  app.add_option("--seed", seed);
  app.add_option("--data", data, "Folder with gpt2-bpe/encoder.json and vocab.bpe");
  for (CLI::Option* option : app.get_options()) option->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    gpt2::BpeTokenizer tokenizer(data + "/gpt2-bpe");
    gpt2::GPT2LMHeadModel model(read_config(checkpoint + "/config.json"));
    load_strictly(model, checkpoint + "/model.safetensors");

    std::vector<std::int64_t> ids = tokenizer.encode(prompt);
    if (ids.empty()) ids.push_back(tokenizer.end_of_text());
    torch::manual_seed(seed);
    const torch::Tensor sample =
        model->generate(torch::tensor(ids, torch::kInt64).unsqueeze(0), tokens, how).squeeze(0);
    std::cout << tokenizer.decode({sample.const_data_ptr<std::int64_t>(),
                                   sample.const_data_ptr<std::int64_t>() + sample.numel()})
              << std::endl;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
