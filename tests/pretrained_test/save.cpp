// What save_pretrained leaves: Python's transformers opens it, and so does load_pretrained, from
// every layout into every other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "checkpoint/formats/safetensors.h"
#include "checkpoint/pretrained/weight_index.h"
#include "tests/pretrained_test/layouts.h"
#include "tests/pretrained_test/python.h"
#include "tests/support/files.h"
#include "tests/support/temporary_directory.h"

namespace oslo::pretrained_test {
namespace {

using test::TemporaryDirectory;

std::set<std::string> names_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename());
  }
  return names;
}

void expect_same_state(const torch::nn::Module& actual, const torch::nn::Module& expected) {
  const auto wanted = ModelView(expected).in_use();
  const auto found = ModelView(actual).in_use();
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_EQ(found[i].name, wanted[i].name);
    EXPECT_TRUE(torch::equal(found[i].tensor, wanted[i].tensor)) << wanted[i].name;
  }
}

/// Other weights than those that every model of the family is made with. What is added is small: of
/// weights that are nearly alike a norm makes the kernels' roundings, which depend on the CPU,
/// large.
void change(const ModulePtr& model) {
  const torch::NoGradGuard no_grad;
  for (const NamedTensor& each : ModelView(model).in_use()) each.tensor.mul_(0.5).add_(0.02);
}

TEST(SavePretrained, PythonOpensWhatACutModelSaves) {
  OSLO_NEEDS_TRANSFORMERS();
  const TemporaryDirectory folder;
  std::filesystem::create_directory(folder / "ours");
  std::map<std::string, torch::Tensor> expected;
  for (const Family& family : families()) {
    const StateDict inputs =
        read_safetensors(Transformers::models() / (family.name + ".safetensors"));
    const ModulePtr plain = family.make(family.config);
    change(plain);
    {
      const torch::NoGradGuard no_grad;
      expected[family.name] = family.forward(*plain, inputs);
    }
    save_pretrained(plain, folder / "plain", PretrainedOptions().config(family.config));
    on_layout({2, 2}, family, family.config, inputs,
              [&](const ParallelModel& parallel, const ModulePtr&) {
                load_pretrained(parallel, folder / "plain");
                save_pretrained(parallel, folder.path() / "ours" / family.name,
                                PretrainedOptions()
                                    .config(family.config)
                                    .max_shard_bytes(family.name == "llama" ? 3000 : 1'000'000));
              });
  }
  Transformers::run("open '" + Transformers::models().string() + "' '" +
                    (folder / "ours").string() + "' '" + (folder / "out").string() + "'");
  for (const auto& [family, logits] : expected) {
    const StateDict python = read_safetensors(folder.path() / "out" / (family + ".safetensors"));
    EXPECT_TRUE(torch::allclose(logits, python.at("logits"), 1e-4, 1e-4))
        << family << " differs by " << (logits - python.at("logits")).abs().max().item<float>();
  }
}

TEST(SavePretrained, ComesBackBitByBitFromEveryLayout) {
  const TemporaryDirectory folder;
  for (const Family& family : families()) {
    const ModulePtr plain = family.make(family.config);
    change(plain);
    save_pretrained(plain, folder / "plain", PretrainedOptions().config(family.config));
    for (const Ranks& layout : kLayouts) {
      on_layout(layout, family, family.config, some_inputs(family.name),
                [&](const ParallelModel& parallel, const ModulePtr&) {
                  load_pretrained(parallel, folder / "plain");
                  save_pretrained(parallel, folder / "cut",
                                  PretrainedOptions().config(family.config));
                });
      EXPECT_EQ(test::contents(folder / "cut" / "model.safetensors"),
                test::contents(folder / "plain" / "model.safetensors"))
          << family.name << " at " << to_string(layout);
      const ModulePtr again = family.make(family.config);
      load_pretrained(again, folder / "cut");
      expect_same_state(*again, *plain);
    }
  }
}

TEST(SavePretrained, Gpt2LiesAsPythonHasIt) {
  const TemporaryDirectory folder;
  const Family family = gpt2_family();
  const ModulePtr model = family.make(family.config);
  save_pretrained(model, folder / "gpt2", PretrainedOptions().config(family.config));
  EXPECT_EQ(names_in(folder / "gpt2"), (std::set<std::string>{"config.json", "model.safetensors"}));
  const SafetensorsFile file(folder / "gpt2" / "model.safetensors");
  EXPECT_FALSE(file.contains("lm_head.weight"));
  const auto parameters = model->named_parameters();
  for (const char* name :
       {"transformer.h.1.attn.c_attn.weight", "transformer.h.1.attn.c_proj.weight",
        "transformer.h.1.mlp.c_fc.weight", "transformer.h.1.mlp.c_proj.weight"}) {
    EXPECT_TRUE(torch::equal(file.read(name), parameters[name].t())) << name;
  }
  EXPECT_TRUE(
      torch::equal(file.read("transformer.wte.weight"), parameters["transformer.wte.weight"]));
}

TEST(SavePretrained, FilesHoldAtMostWhatTheyMay) {
  const TemporaryDirectory folder;
  const Family family = llama_family();
  const ModulePtr model = family.make(family.config);
  const auto options = PretrainedOptions().config(family.config).max_shard_bytes(6000);
  save_pretrained(model, folder / "llama", options);
  const WeightIndex index = WeightIndex::read(folder / "llama" / "model.safetensors.index.json");
  std::map<std::string, int64_t> bytes;
  int64_t total = 0;
  for (const auto& [name, file] : index.files) {
    const int64_t size = SafetensorsFile(folder / "llama" / file).read(name).nbytes();
    bytes[file] += size;
    total += size;
  }
  EXPECT_EQ(index.total_size, total);
  EXPECT_EQ(bytes.size(), names_in(folder / "llama").size() - 2);  // config and index
  EXPECT_GT(bytes.size(), 2u);
  for (const auto& [file, size] : bytes) EXPECT_LE(size, 6000) << file;
  EXPECT_EQ(index.files.at("lm_head.weight"), bytes.rbegin()->first);

  const ModulePtr loaded = family.make(family.config);
  change(loaded);
  load_pretrained(loaded, folder / "llama");
  expect_same_state(*loaded, *model);

  // Fewer files, in the place of those.
  save_pretrained(loaded, folder / "llama", PretrainedOptions());
  EXPECT_EQ(names_in(folder / "llama"),
            (std::set<std::string>{"config.json", "model.safetensors"}));
}

}  // namespace
}  // namespace oslo::pretrained_test
