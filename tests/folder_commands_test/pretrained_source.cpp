// Folders of Hugging Face's as what `oslo` reads: one file, several, a .bin, older names, and
// families that are not known.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/formats/safetensors.h"
#include "checkpoint/formats/torch_bin/torch_bin.h"
#include "tests/folder_commands_test/saved_folder.h"
#include "tests/support/files.h"

namespace oslo::folder_commands_test {
namespace {

using test::contents;
using test::write_contents;
using ::testing::AllOf;
using ::testing::HasSubstr;

class PretrainedCommands : public FolderCommands {
 protected:
  void SetUp() override { save("hf", PretrainedOptions()); }

  void save(const std::string& name, PretrainedOptions options) {
    save_pretrained(make_gpt2(1), in(name), options.config(config()));
  }

  /// "architectures" as Python writes it for a model with a head.
  static nlohmann::json config() {
    nlohmann::json config = small_config().to_json();
    config["architectures"] = {"GPT2LMHeadModel"};
    return config;
  }

  /// The files' tensors, as `change` leaves them, in a folder of their own.
  template <typename Change>
  void save_changed(const std::string& name, const Change& change) {
    StateDict changed;
    for (const auto& [tensor, values] : read_safetensors(in("hf/model.safetensors"))) {
      change(changed, tensor, values);
    }
    fs::create_directory(in(name));
    write_contents(in(name + "/config.json"), config().dump());
    write_safetensors(in(name + "/model.safetensors"), changed);
  }
};

TEST_F(PretrainedCommands, GoThereAndBackByteForByte) {
  save("several", PretrainedOptions().max_shard_bytes(9000));
  fs::create_directory(in("bin"));
  fs::copy_file(in("hf/config.json"), in("bin/config.json"));
  write_torch_bin(in("bin/pytorch_model.bin"), read_safetensors(in("hf/model.safetensors")));
  for (const std::string name : {"hf", "several", "bin"}) {
    oslo({"merge", in(name), in("merged")});
    expect_loads(in("merged"));
    oslo({"convert", in("merged"), in("back"), "--format", "huggingface"});
    for (const char* file : {"config.json", "model.safetensors"}) {
      EXPECT_EQ(contents(in("back/") + file), contents(in("hf/") + file)) << name;
    }
    oslo({"convert", in(name), in("one"), "--format", "huggingface"});
    EXPECT_EQ(contents(in("one/model.safetensors")), contents(in("hf/model.safetensors"))) << name;
    EXPECT_THAT(oslo({"verify", in(name)}), HasSubstr("28 tensors of"));
    for (const char* made : {"merged", "back", "one"}) fs::remove_all(in(made));
  }
}

TEST_F(PretrainedCommands, AreDividedAmongRanks) {
  oslo({"reshard", in("hf"), in("four"), "--set", "tensor_parallel_size=2", "--set",
        "pipeline_parallel_size=2"});
  EXPECT_TRUE(fs::exists(in("four/pytorch_model_tp_1_pp_1.safetensors")));
  expect_loads(in("four"));
  on_grid({"tensor 3", 3}, 2, [&](ParallelModel& parallel, Gpt2& model) {
    parallel.from_parallelized(in("four"));
    expect_values(model, make_gpt2(1));
  });
}

TEST_F(PretrainedCommands, NamesOfTheBareModelAndOfOlderFilesAreTodays) {
  save_changed("old", [](StateDict& state, std::string name, const torch::Tensor& values) {
    const std::string prefix = "transformer.";
    if (name.starts_with(prefix)) name = name.substr(prefix.size());
    state.insert(name, values);
    if (name == "h.0.ln_1.weight") state.insert("h.0.attn.bias", torch::ones({11, 11}));
  });
  oslo({"merge", in("old"), in("merged")});
  expect_loads(in("merged"));
  const StateDict merged = read_safetensors(in("merged/model.safetensors"));
  EXPECT_TRUE(merged.contains("transformer.h.0.ln_1.weight"));
  EXPECT_FALSE(merged.contains("h.0.attn.bias") || merged.contains("transformer.h.0.attn.bias"));
}

TEST_F(PretrainedCommands, TwoTensorsForOneAreRefused) {
  StateDict both;
  for (const char* name : {"weight", "gamma"}) {  // today's name, and that of older files
    both.insert(std::string("bert.embeddings.LayerNorm.") + name, torch::ones({5}));
  }
  write_safetensors(in("hf/model.safetensors"), both);
  write_contents(in("hf/config.json"), R"({"model_type": "bert"})");
  EXPECT_THAT(oslo({"merge", in("hf"), in("merged")}, 1),
              AllOf(HasSubstr("LayerNorm.weight' twice"), HasSubstr("LayerNorm.gamma'")));
  EXPECT_FALSE(fs::exists(in("merged")));
}

TEST_F(PretrainedCommands, AFamilyThatIsNotKnownIsRefusedButRead) {
  nlohmann::json other = config();
  other["model_type"] = "mamba";
  write_contents(in("hf/config.json"), other.dump());
  for (const char* format : {"safetensors", "huggingface"}) {
    EXPECT_THAT(oslo({"convert", in("hf"), in("out"), "--format", format}, 1),
                AllOf(HasSubstr("mamba"), HasSubstr("gpt2"), HasSubstr("model.safetensors")));
  }
  EXPECT_THAT(oslo({"merge", in("hf"), in("out")}, 1), HasSubstr("mamba"));
  EXPECT_THAT(oslo({"reshard", in("hf"), in("out"), "--set", "tensor_parallel_size=2"}, 1),
              HasSubstr("mamba"));
  EXPECT_FALSE(fs::exists(in("out")));
  EXPECT_THAT(oslo({"inspect", in("hf")}), HasSubstr("a folder of Hugging Face's, mamba"));
  EXPECT_THAT(oslo({"verify", in("hf")}), HasSubstr("28 tensors of"));
}

}  // namespace
}  // namespace oslo::folder_commands_test
