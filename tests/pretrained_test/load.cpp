// Folders that Python's transformers saved: they load into plain and into cut models, and give its
// logits and its texts.
#include <gtest/gtest.h>

#include <fstream>

#include "checkpoint/folders/folder_plan.h"
#include "checkpoint/folders/rewrite_folder.h"
#include "checkpoint/formats/safetensors.h"
#include "tests/pretrained_test/layouts.h"
#include "tests/pretrained_test/python.h"

namespace oslo::pretrained_test {
namespace {

nlohmann::json config_in(const std::filesystem::path& folder) {
  std::ifstream file(folder / "config.json");
  return nlohmann::json::parse(file);
}

/// Of the files: as the plain model, it holds all of each.
uint64_t bytes_of(const torch::nn::Module& model) {
  uint64_t bytes = 0;
  for (const NamedTensor& parameter : ModelView(model).in_use()) {
    if (!is_here(parameter.tensor)) continue;
    bytes += local_tensor(parameter.tensor).nbytes();
  }
  return bytes;
}

class FromTransformers : public testing::TestWithParam<const char*> {
 protected:
  void expect_logits(const std::string& form, const Ranks& layout) {
    const std::filesystem::path models = Transformers::models();
    for (const Family& family : families()) {
      if (family.name != GetParam()) continue;
      const std::filesystem::path folder = models / (family.name + form);
      const StateDict expected = read_safetensors(models / (family.name + ".safetensors"));
      on_layout(layout, family, config_in(folder), expected,
                [&](const ParallelModel& parallel, const ModulePtr& model) {
                  const PretrainedLoad load = load_pretrained(parallel, folder);
                  parallel.check();
                  const torch::Tensor logits = whole_logits(family, *model, expected);
                  EXPECT_TRUE(torch::allclose(logits, expected.at("logits"), 1e-4, 1e-4))
                      << family.name << form << " at " << to_string(layout) << " differs by "
                      << (logits - expected.at("logits")).abs().max().item<float>();
                  EXPECT_EQ(load.bytes, bytes_of(*model));
                });
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Families, FromTransformers,
                         testing::Values("gpt2", "llama", "llama3", "bert", "t5", "t5-gated",
                                         "vit"));

TEST_P(FromTransformers, LogitsArePythonsInEveryLayout) {
  OSLO_NEEDS_TRANSFORMERS();
  for (const Ranks& layout : kLayouts) expect_logits("", layout);
}

TEST_P(FromTransformers, SeveralFilesAndBinsLoadTheSame) {
  OSLO_NEEDS_TRANSFORMERS();
  const std::filesystem::path sharded =
      Transformers::models() / (std::string(GetParam()) + "-sharded");
  ASSERT_TRUE(std::filesystem::exists(sharded / "model.safetensors.index.json"));
  for (const char* form : {"-sharded", "-bin"}) {
    expect_logits(form, {1, 1});
    expect_logits(form, {2, 1});
  }
}

/// What `oslo merge` reads: names and transposes without a model.
TEST_P(FromTransformers, MergedFoldersHaveTheSameValues) {
  OSLO_NEEDS_TRANSFORMERS();
  for (const Family& family : families()) {
    if (family.name != GetParam()) continue;
    for (const char* form : {"", "-sharded", "-bin"}) {
      const std::filesystem::path folder = Transformers::models() / (family.name + form);
      const test::TemporaryDirectory merged;
      rewrite_folder(folder, merged / "merged",
                     [](const CheckpointIndex& index) { return plan_merged(index); });
      const ModulePtr loaded = family.make(config_in(folder)),
                      expected = family.make(family.config);
      load_state(*loaded, merged / "merged");
      load_pretrained(expected, folder);
      const auto wanted = ModelView(*expected).in_use(), found = ModelView(*loaded).in_use();
      ASSERT_EQ(found.size(), wanted.size());
      for (size_t i = 0; i < wanted.size(); ++i) {
        EXPECT_TRUE(torch::equal(found[i].tensor, wanted[i].tensor)) << form << wanted[i].name;
      }
    }
  }
}

TEST_P(FromTransformers, TextsArePythonsTokenForToken) {
  OSLO_NEEDS_TRANSFORMERS();
  for (const Family& family : families()) {
    if (family.name != GetParam() || !family.generate) continue;
    const std::filesystem::path folder = Transformers::models() / family.name;
    const StateDict expected =
        read_safetensors(Transformers::models() / (family.name + ".safetensors"));
    for (const Ranks& layout : {Ranks{1, 1}, Ranks{2, 1}}) {
      on_layout(layout, family, config_in(folder), expected,
                [&](const ParallelModel& parallel, const ModulePtr& model) {
                  load_pretrained(parallel, folder);
                  const torch::Tensor text = family.generate(*model, expected, 7);
                  EXPECT_TRUE(torch::equal(text, expected.at("generated")))
                      << to_string(layout) << "\n"
                      << text << "\nPython's:\n"
                      << expected.at("generated");
                });
    }
  }
}

}  // namespace
}  // namespace oslo::pretrained_test
