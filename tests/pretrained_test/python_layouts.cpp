// Models of every known family, written in C++ and exported from Python, in both directions between
// folders and models. What a folder's config.json says is true: Python's transformers opens it, and
// computes what the model computed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "checkpoint/folders/folder_plan.h"
#include "checkpoint/folders/rewrite_folder.h"
#include "checkpoint/formats/safetensors.h"
#include "checkpoint/formats/torch_bin/torch_bin.h"
#include "checkpoint/pretrained/pretrained_folder.h"
#include "checkpoint/pretrained/transposed_matrices.h"
#include "oslo_cpp/exported/module/exported_module.h"
#include "parallelizers/modules/output_values.h"
#include "tests/pretrained_test/layouts.h"
#include "tests/pretrained_test/python.h"
#include "tests/support/error_of.h"
#include "tests/support/temporary_directory.h"

namespace oslo::pretrained_test {
namespace {

using test::TemporaryDirectory;

/// The family's model as Python's transformers exported it, with the weights of its folder there.
Family exported(const Family& family) {
  Family python = family;
  python.make = [name = family.name](const nlohmann::json& /*config*/) -> ModulePtr {
    return test::make_seeded(7, [&] {
      auto model = load_exported(Transformers::models() / (name + ".pt2"));
      model->eval();
      return model;
    });
  };
  python.forward = [](torch::nn::Module& module, const StateDict& in) {
    auto& model = dynamic_cast<ExportedModule&>(module);
    std::vector<c10::IValue> inputs;
    for (const std::string& name : model.input_names()) inputs.emplace_back(in.at(name));
    const c10::IValue output = model.forward(inputs);
    if (output.isTensor()) return output.toTensor();
    const auto& names = model.output_names();
    const auto logits = std::find(names.begin(), names.end(), "logits") - names.begin();
    return output.toTupleRef().elements()[static_cast<size_t>(logits)].toTensor();
  };
  return python;
}

torch::Tensor logits_of(const Family& family, const ModulePtr& model, const StateDict& inputs) {
  const torch::NoGradGuard no_grad;
  return family.forward(*model, inputs);
}

/// Other weights than those that Python's model has: those of a matrix are not those of its
/// transpose.
void change_weights(const ModulePtr& model) {
  const torch::NoGradGuard no_grad;
  for (const NamedTensor& each : ModelView(model).in_use()) each.tensor.mul_(0.75).add_(0.01);
}

StateDict inputs_of(const Family& family) {
  return read_safetensors(Transformers::models() / (family.name + ".safetensors"));
}

nlohmann::json config_of(const Family& family) {
  return read_pretrained_config(Transformers::models() / family.name);
}

void expect_close(const torch::Tensor& actual, const torch::Tensor& wanted,
                  const std::string& where) {
  ASSERT_EQ(actual.sizes(), wanted.sizes()) << where;
  EXPECT_TRUE(torch::allclose(actual, wanted, 1e-4, 1e-4))
      << where << " differs by " << (actual - wanted).abs().max().item<float>();
}

void expect_same_values(const ModulePtr& actual, const ModulePtr& wanted) {
  const auto found = ModelView(actual).in_use(), expected = ModelView(wanted).in_use();
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(torch::equal(found[i].tensor, expected[i].tensor)) << found[i].name;
  }
}

TEST(PythonLayouts, EveryKnownFamilyIsTested) {
  std::set<std::string> known, tested;
  for (const PretrainedFamily& family : pretrained_families()) known.insert(family.model_type);
  for (const Family& family : families()) tested.insert(family.config.at("model_type"));
  EXPECT_EQ(tested, known);
}

TEST(PythonLayouts, FoldersGoIntoExportedModels) {
  OSLO_NEEDS_TRANSFORMERS();
  for (const Family& family : families()) {
    const Family python = exported(family);
    const StateDict inputs = inputs_of(family);
    for (const Ranks& layout : {Ranks{1, 1}, Ranks{2, 2}}) {
      on_layout(layout, python, {}, inputs,
                [&](const ParallelModel& parallel, const ModulePtr& model) {
                  change_weights(model);
                  load_pretrained(parallel, Transformers::models() / family.name);
                  expect_close(whole_logits(python, *model, inputs), inputs.at("logits"),
                               family.name + " at " + to_string(layout));
                });
    }
  }
}

/// Each way to write a folder of a model, and the model's own logits.
class Writer {
 public:
  explicit Writer(std::filesystem::path folder) : folder_(std::move(folder)) {}

  void write(const Family& family, const std::string& kind) {
    const StateDict inputs = inputs_of(family);
    const nlohmann::json config = config_of(family);
    const ModulePtr plain = family.make(family.config);
    change_weights(plain);
    const torch::Tensor logits = logits_of(family, plain, inputs);
    const auto next = [&](const std::string& how) {
      const std::string name = family.name + "@" + kind + "_" + how;
      logits_[name] = logits;
      return (folder_ / name).string();
    };
    save_pretrained(ModelView(plain), next("saved"), PretrainedOptions().config(config));
    const std::filesystem::path parts = folder_.parent_path() / "parts" / (family.name + kind);
    std::filesystem::create_directories(parts.parent_path());
    const auto merge = SaveOptions().merge_checkpoints(true).config(config);
    const std::string merged = next("merged"), in_bin = next("in_bin"), cut = next("cut");
    on_layout({2, 2}, family, family.config, inputs,
              [&](const ParallelModel& parallel, const ModulePtr&) {
                load_pretrained(parallel, folder_ / (family.name + "@" + kind + "_saved"));
                save_pretrained(parallel, cut, PretrainedOptions().config(config));
                parallel.save_parallelized(merged, merge);
                parallel.save_parallelized(in_bin, SaveOptions(merge).format("bin"));
                parallel.save_parallelized(parts.string(), SaveOptions().config(config));
              });
    // The commands of the same names.
    rewrite_folder(parts, next("merge_command"),
                   [](const CheckpointIndex& index) { return plan_merged(index); });
    rewrite_as_pretrained(merged, next("convert_command"));
    rewrite_folder(
        folder_ / (family.name + "@" + kind + "_saved"), next("merged_from_python"),
        [](const CheckpointIndex& index) { return plan_merged(index, Format::safetensors); });
  }

  const std::map<std::string, torch::Tensor>& logits() const { return logits_; }

 private:
  std::filesystem::path folder_;
  std::map<std::string, torch::Tensor> logits_;
};

TEST(PythonLayouts, PythonOpensWhateverIsSavedBesideAConfig) {
  OSLO_NEEDS_TRANSFORMERS();
  const TemporaryDirectory folder;
  std::filesystem::create_directory(folder / "ours");
  Writer writer(folder / "ours");
  for (const Family& family : families()) {
    writer.write(family, "cpp");
    writer.write(exported(family), "exported");
  }
  Transformers::run("open '" + Transformers::models().string() + "' '" +
                    (folder / "ours").string() + "' '" + (folder / "out").string() + "'");
  for (const auto& [name, logits] : writer.logits()) {
    const StateDict python = read_safetensors(folder.path() / "out" / (name + ".safetensors"));
    expect_close(python.at("logits"), logits, name);
  }
}

TEST(PythonLayouts, MergedFoldersComeBackIntoTheirModelBitByBit) {
  const TemporaryDirectory folder;
  for (const Family& family : families()) {
    const ModulePtr plain = family.make(family.config);
    change_weights(plain);
    save_parallelized(ModelView(plain), MPU(World::alone()), folder / "merged",
                      SaveOptions().merge_checkpoints(true).config(family.config));
    for (const char* what : {"", "model.safetensors", "pytorch_model.bin"}) {
      const ModulePtr again = family.make(family.config);
      load_state(ModelView(again), std::filesystem::path(folder / "merged") / what);
      expect_same_values(again, plain);
    }
    const ModulePtr by_config = family.make(family.config);
    load_pretrained(ModelView(by_config), folder / "merged");
    expect_same_values(by_config, plain);
    const StateDict inputs = some_inputs(family.name);
    const torch::Tensor wanted = logits_of(family, plain, inputs);
    on_layout({2, 2}, family, family.config, inputs,
              [&](ParallelModel parallel, const ModulePtr& model) {
                parallel.from_parallelized(folder / "merged");
                expect_close(whole_logits(family, *model, inputs), wanted, family.name);
              });
  }
}

/// The bytes of both files, of a C++ model, are those of Python's layout.
TEST(PythonLayouts, AMergedGpt2LiesAsItsConfigSays) {
  const TemporaryDirectory folder;
  const Family family = gpt2_family();
  const ModulePtr model = family.make(family.config);
  const std::string name = "transformer.h.1.attn.c_proj.weight";
  const torch::Tensor weight = model->named_parameters()[name];
  const auto merge = SaveOptions().merge_checkpoints(true);
  const MPU alone(World::alone());
  save_parallelized(ModelView(model), alone, folder / "python",
                    SaveOptions(merge).config(family.config));
  EXPECT_TRUE(
      torch::equal(read_safetensors(folder / "python" / "model.safetensors").at(name), weight.t()));
  EXPECT_TRUE(
      torch::equal(read_torch_bin(folder / "python" / "pytorch_model.bin").at(name), weight.t()));
  // Without a config.json of the family nothing says how they lie: as in the model.
  save_parallelized(ModelView(model), alone, folder / "own",
                    SaveOptions(merge).config({{"n_embd", 12}}));
  EXPECT_TRUE(
      torch::equal(read_safetensors(folder / "own" / "model.safetensors").at(name), weight));
}

TEST(PythonLayouts, AMergedFolderOfTheOtherLayoutIsRefusedWithTheWayThatWorks) {
  OSLO_NEEDS_TRANSFORMERS();
  const TemporaryDirectory folder;
  const Family family = gpt2_family(), python = exported(family);
  const ModulePtr cpp = family.make(family.config), theirs = python.make(family.config);
  const MPU alone(World::alone());
  const auto merge = SaveOptions().merge_checkpoints(true).config(family.config);
  save_parallelized(ModelView(theirs), alone, folder / "theirs", merge);
  save_parallelized(ModelView(cpp), alone, folder / "ours", merge);
  for (const auto& [model, other] : {std::pair{cpp, "theirs"}, std::pair{theirs, "ours"}}) {
    EXPECT_THAT(test::error_of([&, &model = model, &other = other] {
                  load_state(ModelView(model), folder / other);
                }),
                testing::HasSubstr("load_pretrained takes a folder with a config.json"));
  }
  // The way that works.
  load_pretrained(ModelView(cpp), folder / "theirs");
  const StateDict inputs = inputs_of(family);
  expect_close(logits_of(family, cpp, inputs), logits_of(python, theirs, inputs), "gpt2");
}

TEST(PythonLayouts, AConfigThatTiesWhatTheModelHasTwiceIsRefused) {
  const TemporaryDirectory folder;
  Family family = llama_family();
  nlohmann::json config = family.config;
  config["tie_word_embeddings"] = true;
  const ModulePtr model = family.make(family.config);
  EXPECT_THAT(test::error_of([&] {
                save_parallelized(ModelView(model), MPU(World::alone()), folder / "merged",
                                  SaveOptions().merge_checkpoints(true).config(config));
              }),
              testing::HasSubstr("the model has the two apart"));
  EXPECT_FALSE(std::filesystem::exists(folder / "merged"));
}

const PretrainedFamily kSmall{.model_type = "small",
                              .prefix = "",
                              .transposed = {"*.weight"},
                              .spare = {},
                              .renamed = {},
                              .ties = {}};

using Names = std::set<std::string>;

TEST(PythonLayouts, AMatrixLiesAsItsBiasSaysAndASquareOneAsTheOthers) {
  const std::vector<int64_t> wide{5, 7}, square{5, 5}, five{5}, seven{7};
  // [out, in], as LibTorch's Linear has it.
  EXPECT_EQ(
      transposed_matrices(
          kSmall, {{"a.weight", wide}, {"a.bias", five}, {"b.weight", square}, {"b.bias", five}}),
      (Names{"a.weight", "b.weight"}));
  // [in, out], as a C++ class of a program's own may have it, too.
  EXPECT_EQ(
      transposed_matrices(
          kSmall, {{"a.weight", wide}, {"a.bias", seven}, {"b.weight", square}, {"b.bias", five}}),
      Names());
  // Nothing tells: modules of Python have Python's layout.
  EXPECT_EQ(transposed_matrices(kSmall, {{"a.weight", wide}, {"b.weight", square}},
                                {"a.weight", "b.weight"}),
            Names());
  EXPECT_EQ(transposed_matrices(kSmall, {{"a.weight", wide}, {"b.weight", square}}),
            (Names{"a.weight", "b.weight"}));
  // Both: each for itself.
  EXPECT_EQ(transposed_matrices(kSmall,
                                {{"a.weight", wide},
                                 {"a.bias", five},
                                 {"b.weight", wide},
                                 {"b.bias", seven},
                                 {"c.weight", square},
                                 {"d.weight", square}},
                                {"b.weight", "c.weight"}),
            (Names{"a.weight", "d.weight"}));
}

}  // namespace
}  // namespace oslo::pretrained_test
