// What is saved comes back: in parts, merged, into other layouts, under both names of a tie.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/serialize.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "checkpoint/formats/safetensors.h"
#include "checkpoint/formats/torch_bin/torch_bin.h"
#include "tests/parallel_checkpoint_test/two_by_two.h"
#include "tests/support/files.h"

namespace oslo::checkpoint_test {
namespace {

using test::contents;

const std::set<std::string> kKeys = {"head.weight",       "mask",
                                     "norm.bias",         "norm.num_batches_tracked",
                                     "norm.running_mean", "norm.running_var",
                                     "norm.weight",       "proj.bias",
                                     "proj.weight",       "qkv.bias",
                                     "qkv.weight",        "scale",
                                     "wte.weight"};

std::set<std::string> keys(const StateDict& state) {
  std::set<std::string> names;
  for (const auto& [name, _] : state) names.insert(name);
  return names;
}

class ParallelCheckpoint : public ::testing::TestWithParam<Sizes> {
 protected:
  const TemporaryDirectory folder_;
  const std::string target_ = folder_ / "ckpt";
};

INSTANTIATE_TEST_SUITE_P(Meshes, ParallelCheckpoint,
                         ::testing::Values(Sizes{1, 1, 1}, Sizes{4, 2, 1}, Sizes{3, 3, 1},
                                           Sizes{4, 4, 1}, Sizes{4, 2, 2}));

TEST_P(ParallelCheckpoint, PartsComeBackBitByBitIntoTheSameTensors) {
  for (const char* format : {"safetensors", "bin"}) {
    run_as_threads(GetParam().world, [&](World world) {
      const MPU mpu(world, options_of(GetParam()));
      const Model saved = make_parallel(1, mpu);
      save_parallelized(*saved, mpu, target_, SaveOptions().format(format));

      const Model loaded = make_parallel(2, mpu);
      std::map<std::string, const void*> before;
      for (const auto& item : loaded->named_parameters()) {
        before[item.key()] = item.value().const_data_ptr();
      }
      load_parallelized(*loaded, mpu, target_);
      expect_equal(whole_state(*loaded), whole_state(*saved));
      expect_equal(whole_state(*loaded), whole_state(*make_model(1)));
      for (const auto& item : loaded->named_parameters()) {
        EXPECT_EQ(before[item.key()], item.value().const_data_ptr()) << item.key();
        EXPECT_TRUE(item.value().requires_grad()) << item.key();
      }
      EXPECT_EQ(is_placed(loaded->qkv->weight), GetParam().tensor > 1);
    });
    std::set<std::string> expected = {kIndexName};
    for (int t = 0; t < GetParam().tensor; ++t) {
      for (int p = 0; p < GetParam().pipeline; ++p) {
        expected.insert(c10::str("pytorch_model_tp_", t, "_pp_", p, ".", format));
      }
    }
    EXPECT_EQ(names_in(target_), expected);
    EXPECT_EQ(names_in(folder_.path()), std::set<std::string>{"ckpt"});
  }
}

TEST_P(ParallelCheckpoint, MergedIsTheOriginalModel) {
  const nlohmann::json config = {{"n_embd", kWidth}};
  run_as_threads(GetParam().world, [&](World world) {
    const MPU mpu(world, options_of(GetParam()));
    save_parallelized(*make_parallel(1, mpu), mpu, target_,
                      SaveOptions().merge_checkpoints(true).config(config));
  });
  EXPECT_EQ(names_in(target_), (std::set<std::string>{"config.json", "model.safetensors",
                                                      "pytorch_model.bin", kIndexName}));
  EXPECT_EQ(nlohmann::json::parse(contents(target_ + "/config.json")), config);

  const StateDict original = whole_state(*make_model(1));
  const StateDict bin = read_torch_bin(target_ + "/pytorch_model.bin");
  EXPECT_EQ(keys(bin), kKeys);
  expect_equal(bin, original);
  EXPECT_TRUE(bin.at("head.weight").is_alias_of(bin.at("wte.weight")));

  const SafetensorsFile file(target_ + "/model.safetensors");
  EXPECT_FALSE(file.contains("head.weight"));
  EXPECT_EQ(file.metadata().at("head.weight"), "wte.weight");
  for (const std::string& key : file.keys()) {
    EXPECT_TRUE(at::equal(file.read(key), original.at(key))) << key;
  }
  // Each of the files, and the folder, into one device. torch::load reads archives of its own only.
  Model unread = make_model(2);
  EXPECT_ANY_THROW(torch::load(unread, target_ + "/pytorch_model.bin"));
  for (const char* name : {"", "/model.safetensors", "/pytorch_model.bin"}) {
    const Model loaded = make_model(2);
    load_state(*loaded, target_ + name);
    expect_equal(whole_state(*loaded), original);
    EXPECT_TRUE(loaded->head->weight.is_same(loaded->wte->weight));
  }
}

TEST_P(ParallelCheckpoint, MergedGoesIntoAnyLayout) {
  const Model original = make_model(1);
  const MPU alone(World::alone());
  for (const char* format : {"safetensors", "bin"}) {
    save_parallelized(*original, alone, target_,
                      SaveOptions().merge_checkpoints(true).format(format));
    // Once as saved, once as another program's folder, without our index.
    for (const bool foreign : {false, true}) {
      if (foreign) fs::remove(target_ + "/" + kIndexName);
      run_as_threads(GetParam().world, [&](World world) {
        const MPU mpu(world, options_of(GetParam()));
        const Model loaded = make_parallel(2, mpu);
        load_parallelized(*loaded, mpu, target_);
        expect_equal(whole_state(*loaded), whole_state(*original));
      });
    }
  }
}

TEST_F(TwoByTwo, WhatElseAProgramResumesFromIsOfTheSameSave) {
  for (const bool merge : {false, true}) {
    save(1, SaveOptions().merge_checkpoints(merge).extra({{"step", 7}}));
    run_as_threads(kMesh.world, [&](World world) {
      const MPU mpu(world, options_of(kMesh));
      nlohmann::json extra;
      load_parallelized(*make_parallel(2, mpu), mpu, target_, LoadOptions().extra(&extra));
      EXPECT_EQ(extra, (nlohmann::json{{"step", 7}}));
    });
    expect_seed(1);  // nobody has to ask for it
    test::write_contents(target_ + "/extra.json", "{\n  \"step\": 8\n}\n");
    EXPECT_SAYS(failed_load(), "extra.json is damaged");
  }
  save(1);
  EXPECT_EQ(names_in(target_).count("extra.json"), 0u);
  run_as_threads(kMesh.world, [&](World world) {
    const MPU mpu(world, options_of(kMesh));
    nlohmann::json extra = "as before";
    EXPECT_SAYS(error_of([&] {
                  load_parallelized(*make_parallel(2, mpu), mpu, target_,
                                    LoadOptions().extra(&extra));
                }),
                "has no extra.json");
    EXPECT_EQ(extra, "as before");
  });
}

TEST(SaveOptions, RefusesWhatALoadWouldRefuse) {
  const auto refusal = [](const nlohmann::json& json) {
    return error_of([&] { SaveOptions().extra({{"seen", json}}); });
  };
  EXPECT_SAYS(refusal(std::string(17 << 20, 'x')), "extra.json cannot be written: it has");
  EXPECT_SAYS(refusal(std::vector<int>((1 << 20) + 1, 7)), "values that are read at most");
  EXPECT_SAYS(refusal({{std::string("a\0b", 3), 1}}), "NUL");
  SaveOptions().extra({{"seen", std::vector<int>(1000, 7)}});
}

TEST_F(TwoByTwo, DataRanksShareOneFileAndRankZerosValues) {
  run_as_threads(4, [&](World world) {
    const MPU mpu(world, options_of(kMesh));
    // What other data ranks hold must not matter.
    const Model model = make_parallel(1 + mpu.get_data_parallel_rank(), mpu);
    save_parallelized(*model, mpu, target_);
    save_parallelized(*model, mpu, folder_ / "merged", SaveOptions().merge_checkpoints(true));
  });
  expect_seed(1);
  expect_equal(read_torch_bin(folder_ / "merged/pytorch_model.bin"), whole_state(*make_model(1)));
}

TEST_F(TwoByTwo, FillsTiesFromEitherNameAndRefusesTwoValues) {
  StateDict state = whole_state(*make_model(1));
  StateDict other_name, two_values;
  for (const auto& [name, tensor] : state) {
    if (name != "wte.weight") other_name.insert(name, tensor);
    two_values.insert(name, name == "head.weight" ? tensor + 1 : tensor);
  }
  fs::create_directory(target_);
  write_safetensors(target_ + "/model.safetensors", other_name);
  expect_seed(1);
  write_safetensors(target_ + "/model.safetensors", two_values);
  const std::string message = failed_load();
  EXPECT_SAYS(message, "the model ties 'wte.weight' and 'head.weight'");

  // A checkpoint of tied weights fills both of a model that does not tie them.
  save(1, SaveOptions().merge_checkpoints(true).format("safetensors"));
  const Model untied = make_model(2);
  untied->head->weight = untied->head->named_parameters()["weight"];
  load_state(*untied, target_);
  EXPECT_FALSE(untied->head->weight.is_same(untied->wte->weight));
  EXPECT_TRUE(at::equal(untied->head->weight, state.at("wte.weight")));
  EXPECT_TRUE(at::equal(untied->wte->weight, state.at("wte.weight")));
}

// Two mesh axes of two ranks each, as 2D parallelism cuts: the files are those of tensor size 4.
TEST(ParallelCheckpointTwoAxes, PartsOfBothAxesComeBack) {
  const TemporaryDirectory folder;
  run_as_threads(4, [&](World world) {
    const MPU mpu(world, MpuOptions().tensor_parallel_size(4));
    const int row = world.rank() / 2;
    const int column = world.rank() % 2;
    const auto mesh = std::make_shared<Mesh>(
        std::vector<std::shared_ptr<Group>>{world.make_group("row", {column, column + 2}),
                                            world.make_group("column", {2 * row, 2 * row + 1})});
    const auto make = [&](int seed) {
      Model model = make_model(seed);
      const auto two_axes = [&](const at::Tensor& parameter, Placement outer, Placement inner,
                                const std::string& name) {
        mark_parameter(
            parameter,
            std::make_shared<const Layout>(make_layout(mesh, {outer, inner}, parameter.sizes())),
            name);
      };
      two_axes(model->wte->weight, Placement::shard(0), Placement::shard(0), "wte.weight");
      two_axes(model->qkv->weight, Placement::shard(0, 3), Placement::shard(1), "qkv.weight");
      two_axes(model->proj->bias, Placement::replicate(), Placement::shard(0), "proj.bias");
      return model;
    };
    const Model saved = make(1);
    save_parallelized(*saved, mpu, folder / "ckpt");
    const Model loaded = make(2);
    load_parallelized(*loaded, mpu, folder / "ckpt");
    expect_equal(whole_state(*loaded), whole_state(*make_model(1)));
    save_parallelized(*loaded, mpu, folder / "merged", SaveOptions().merge_checkpoints(true));
  });
  const CheckpointIndex index = CheckpointIndex::read(folder / "ckpt" / kIndexName);
  EXPECT_EQ(index.tensors.at("proj.bias").parts.size(), 2u);  // not written twice
  EXPECT_EQ(to_string(index.tensors.at("wte.weight").parts[3].cuts),
            "dim 0: part 1 of 27+26; dim 0: part 1 of 13+13");
  expect_equal(read_torch_bin(folder / "merged/pytorch_model.bin"), whole_state(*make_model(1)));
}

// Parameters cut over data ranks (ZeRO-3) are in no tensor rank's file: merged only, for now.
TEST(ParallelCheckpointTwoAxes, CutsOverDataRanksAreMergedOnly) {
  const TemporaryDirectory folder;
  run_as_threads(2, [&](World world) {
    const MPU mpu(world, MpuOptions());
    const ContextPtr context = context_of(
        std::make_shared<const Mesh>(std::vector<std::shared_ptr<Group>>{mpu.data_group()}));
    const Model model = make_model(1);
    cut(model->wte->weight, context, Placement::shard(0), "wte.weight");
    EXPECT_SAYS(error_of([&] { save_parallelized(*model, mpu, folder / "ckpt"); }),
                "'wte.weight' is cut over ranks outside the tensor group");
    save_parallelized(*model, mpu, folder / "merged", SaveOptions().merge_checkpoints(true));
    const Model loaded = make_model(2);
    cut(loaded->wte->weight, context, Placement::shard(0), "wte.weight");
    load_parallelized(*loaded, mpu, folder / "merged");
    expect_equal(whole_state(*loaded), whole_state(*make_model(1)));
  });
  EXPECT_FALSE(fs::exists(folder / "ckpt"));
}

}  // namespace
}  // namespace oslo::checkpoint_test
