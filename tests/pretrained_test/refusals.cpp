// What does not fit is refused by its name, on every rank, and the model is as it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "checkpoint/formats/safetensors.h"
#include "checkpoint/formats/torch_bin/torch_bin.h"
#include "tests/pretrained_test/layouts.h"
#include "tests/support/error_of.h"
#include "tests/support/files.h"
#include "tests/support/temporary_directory.h"

namespace oslo::pretrained_test {
namespace {

using test::error_of;
using test::expect_contains;
using test::write_contents;

/// A folder of GPT-2 whose tensors a test may change, and a model that it would go into.
class DamagedFolder : public testing::Test {
 protected:
  void SetUp() override {
    const ModulePtr saved = family_.make(family_.config);
    {
      const torch::NoGradGuard no_grad;
      for (const NamedTensor& each : ModelView(saved).in_use()) each.tensor.add_(1);
    }
    save_pretrained(saved, folder_, PretrainedOptions().config(family_.config));
    for (const auto& [name, tensor] : read_safetensors(file_)) tensors_[name] = tensor;
  }

  void write() {
    StateDict state;
    for (const auto& [name, tensor] : tensors_) state.insert(name, tensor);
    write_safetensors(file_, state);
  }

  /// What a load says, alone and on two ranks, where both must say it; nothing has changed.
  std::string refusal(const PretrainedOptions& options = {}) {
    const ModulePtr model = family_.make(family_.config);
    const std::string message = error_of([&] { load_pretrained(model, folder_, options); });
    expect_as_made(*model);
    on_layout({2, 1}, family_, family_.config, some_inputs("gpt2"),
              [&](const ParallelModel& parallel, const ModulePtr& cut) {
                EXPECT_EQ(error_of([&] { load_pretrained(parallel, folder_, options); }), message);
                expect_as_made(*cut);
              });
    return message;
  }

  void expect_loads(const PretrainedOptions& options = {}) {
    const ModulePtr model = family_.make(family_.config);
    load_pretrained(model, folder_, options);
    const ModulePtr made = family_.make(family_.config);
    const auto before = ModelView(made).in_use(), now = ModelView(model).in_use();
    for (size_t i = 0; i < now.size(); ++i) {
      EXPECT_TRUE(torch::equal(now[i].tensor, before[i].tensor + 1)) << now[i].name;
    }
  }

  void expect_as_made(const torch::nn::Module& model) {
    const ModulePtr made = family_.make(family_.config);
    const auto expected = ModelView(made).in_use(), found = ModelView(model).in_use();
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(torch::equal(full_tensor(found[i].tensor), expected[i].tensor))
          << expected[i].name;
    }
  }

  const Family family_ = gpt2_family();
  const test::TemporaryDirectory directory_;
  const std::filesystem::path folder_ = directory_ / "gpt2";
  const std::filesystem::path file_ = folder_ / "model.safetensors";
  std::map<std::string, torch::Tensor> tensors_;
};

TEST_F(DamagedFolder, TensorsThatDoNotFit) {
  expect_loads();
  const auto saved = tensors_;
  const auto with = [&](const std::function<void()>& change) {
    tensors_ = saved;
    change();
    write();
    return refusal();
  };
  const std::string c_fc = "transformer.h.1.mlp.c_fc.weight";
  expect_contains(with([&] { tensors_.erase(c_fc); }),
                  {"has no '" + c_fc + "'", "which the model has"});
  expect_contains(with([&] { tensors_["transformer.h.2.ln_1.weight"] = torch::ones(12); }),
                  {"has 'transformer.h.2.ln_1.weight', the model has not", "ignore("});
  // As LibTorch has it, which is the transpose of what belongs there.
  expect_contains(
      with([&] { tensors_[c_fc] = tensors_[c_fc].t().contiguous(); }),
      {"'" + c_fc + "' of shape [48, 12], to be transposed", "in the model it has [48, 12]"});
  expect_contains(with([&] {
                    tensors_["transformer.ln_f.bias"] = torch::ones({12, 1});
                  }),
                  {"'transformer.ln_f.bias' of shape [12, 1]", "in the model it has [12]"});
  expect_contains(with([&] {
                    tensors_["wte.weight"] = torch::ones({53, 12});
                  }),
                  {"has 'transformer.wte.weight' twice", "'wte.weight'"});
  expect_contains(with([&] {
                    tensors_["lm_head.weight"] = torch::ones({53, 12});
                  }),
                  {"the model ties", "'lm_head.weight'", "different values"});
  expect_contains(with([&] { tensors_["transformer.ln_f.bias"] = torch::ones(12, torch::kHalf); }),
                  {"'transformer.ln_f.bias' as Half, the model has it as Float", "convert(true)"});
  tensors_ = saved;
  tensors_["transformer.ln_f.bias"] = saved.at("transformer.ln_f.bias").to(torch::kDouble);
  tensors_["transformer.extra.mask"] = torch::ones(3);
  write();
  expect_loads(PretrainedOptions().convert(true).ignore("transformer.*.mask"));
}

TEST_F(DamagedFolder, WhatOlderVersionsWroteLoads) {
  // The bare model's names, its masks, and a head of its own with the same values.
  std::map<std::string, torch::Tensor> bare;
  for (const auto& [name, tensor] : tensors_) bare[name.substr(sizeof "transformer." - 1)] = tensor;
  bare["h.0.attn.bias"] = torch::ones({1, 1, 19, 19}, torch::kBool);
  bare["h.1.attn.masked_bias"] = torch::tensor(-1e4);
  bare["lm_head.weight"] = bare["wte.weight"].clone();
  tensors_ = bare;
  write();
  expect_loads();
  std::filesystem::remove(file_);
  StateDict all, parts[2];
  nlohmann::json map;
  for (const auto& [name, tensor] : tensors_) {
    const int part = tensor.dim() > 1;
    all.insert(name, tensor);
    parts[part].insert(name, tensor);
    map[name] = part == 0 ? "a.bin" : "b.bin";
  }
  write_torch_bin(folder_ / "a.bin", parts[0]);
  write_torch_bin(folder_ / "b.bin", parts[1]);
  write_contents(folder_ / "pytorch_model.bin.index.json",
                 nlohmann::json{{"weight_map", map}}.dump());
  expect_loads();
  write_torch_bin(folder_ / "pytorch_model.bin", all);
  expect_loads();
}

TEST_F(DamagedFolder, HeadersOfAnyLengthLoad) {
  std::string bytes = test::contents(file_);
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  bytes.insert(8 + length, "   ");
  length += 3;
  std::memcpy(bytes.data(), &length, 8);
  write_contents(file_, bytes);
  expect_loads();
}

TEST_F(DamagedFolder, FilesThatAreNotThereOrNotWhole) {
  const std::string bytes = test::contents(file_);
  write_contents(file_, bytes.substr(0, bytes.size() - 5));
  expect_contains(refusal(), {"model.safetensors", "the file is cut"});
  std::filesystem::remove(file_);
  expect_contains(refusal(), {"there is no model in", "model.safetensors"});
  write_contents(folder_ / "config.json", R"({"model_type": "gpt3"})");
  write_contents(file_, bytes);
  expect_contains(refusal(), {"config.json has the model_type 'gpt3'", "gpt2, llama", "family("});
  write_contents(folder_ / "config.json", "[1]");
  expect_contains(refusal(), {"config.json: it is no JSON object"});
  std::filesystem::remove(folder_ / "config.json");
  expect_contains(refusal(), {"cannot open", "config.json"});
  std::filesystem::remove_all(folder_);
  expect_contains(refusal(), {"there is no folder"});
}

TEST_F(DamagedFolder, IndicesThatLie) {
  const std::string tensors = test::contents(file_);
  std::filesystem::remove(file_);
  write_contents(folder_ / "model-a.safetensors", tensors);
  write_contents(directory_ / "outside.safetensors", tensors);
  const auto with = [&](const std::string& file, const std::string& left_out = "",
                        const std::string& added = "") {
    nlohmann::json map = nlohmann::json::object();
    for (const auto& [name, _] : tensors_) {
      if (name != left_out) map[name] = file;
    }
    if (!added.empty()) map[added] = file;
    const nlohmann::json index = {{"metadata", {{"total_size", 1}}}, {"weight_map", map}};
    write_contents(folder_ / "model.safetensors.index.json", index.dump());
  };
  with("model-a.safetensors");
  expect_loads();
  for (const char* outside : {"../outside.safetensors", "..", "", "sub/model-a.safetensors"}) {
    with(outside);
    expect_contains(refusal(), {"model.safetensors.index.json", "not the name of a file in this"});
  }
  with((directory_ / "outside.safetensors").string());
  expect_contains(refusal(), {"model.safetensors.index.json", "not the name of a file in this"});
  with("model-b.safetensors");
  expect_contains(refusal(), {"cannot open", "model-b.safetensors"});
  with("model-a.safetensors", "transformer.wpe.weight");
  expect_contains(refusal(), {"does not list 'transformer.wpe.weight'", "model-a.safetensors"});
  with("model-a.safetensors", "", "transformer.more");
  expect_contains(refusal(), {"'transformer.more' lies in model-a.safetensors, where it is not"});
  write_contents(folder_ / "model.safetensors.index.json", "{}");
  expect_contains(refusal(), {"has no weight_map"});
  write_contents(folder_ / "model.safetensors.index.json", R"({"weight_map": {"a": 1}})");
  expect_contains(refusal(), {"the file of 'a' is no text"});
}

TEST_F(DamagedFolder, SavesThatWouldLoseSomething) {
  const ModulePtr model = family_.make(family_.config);
  const std::string before = test::contents(file_);
  write_contents(folder_ / "tokenizer.json", "{}");
  const auto refused = [&](const nlohmann::json& config, const std::string& folder) {
    return error_of([&] { save_pretrained(model, folder, PretrainedOptions().config(config)); });
  };
  expect_contains(refused(family_.config, folder_), {"holds tokenizer.json", "another folder"});
  EXPECT_EQ(test::contents(file_), before);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "tokenizer.json"));
  const std::string fresh = directory_ / "fresh";
  expect_contains(refused({{"n_embd", 12}}, fresh), {"config.json has no model_type"});
  expect_contains(error_of([&] { save_pretrained(model, fresh); }),
                  {"needs the model's config.json", "config(json)"});
  const Family other = llama_family();
  nlohmann::json ties = other.config;
  ties["tie_word_embeddings"] = true;
  const ModulePtr apart = other.make(other.config);
  expect_contains(
      error_of([&] { save_pretrained(apart, fresh, PretrainedOptions().config(ties)); }),
      {"ties 'lm_head.weight' to 'model.embed_tokens.weight'", "tie_word_embeddings"});
  EXPECT_FALSE(std::filesystem::exists(fresh));
  EXPECT_THAT(error_of([] { PretrainedOptions().max_shard_bytes(0); }),
              testing::HasSubstr("max_shard_bytes is 0"));
  on_layout({2, 1}, family_, family_.config, some_inputs("gpt2"),
            [&](const ParallelModel&, const ModulePtr& cut) {
              expect_contains(error_of([&] { load_pretrained(cut, folder_); }),
                              {"is cut over ranks", "load_pretrained(parallel, folder)"});
              expect_contains(error_of([&] {
                                save_pretrained(cut, fresh,
                                                PretrainedOptions().config(family_.config));
                              }),
                              {"is cut over ranks", "save_pretrained(parallel, folder)"});
            });
}

TEST(PretrainedFamily, NamesOfFiles) {
  EXPECT_TRUE(matches_pattern("h.0.attn.bias", "h.*.attn.bias"));
  EXPECT_FALSE(matches_pattern("h.0.attn.c_attn.bias", "h.*.attn.bias"));
  EXPECT_FALSE(matches_pattern("h.0.attn", "h.*.attn.bias"));
  EXPECT_FALSE(matches_pattern("h.0.attn.bias.x", "h.*.attn.bias"));
  EXPECT_TRUE(matches_pattern("a", "*"));
  PretrainedFamily family;
  family.prefix = "bert.";
  family.renamed = {{"gamma", "weight"}};
  EXPECT_EQ(
      family.names_for("encoder.LayerNorm.gamma"),
      (std::vector<std::string>{"encoder.LayerNorm.weight", "bert.encoder.LayerNorm.weight"}));
  EXPECT_EQ(family.names_for("bert.gamma.x"),
            (std::vector<std::string>{"bert.gamma.x", "gamma.x"}));
}

}  // namespace
}  // namespace oslo::pretrained_test
