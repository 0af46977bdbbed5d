#include "checkpoint/parallel_checkpoint.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_index.h"
#include "checkpoint/hash.h"
#include "checkpoint/load_state.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/torch_bin.h"
#include "mpu/error.h"
#include "parallelizers/placement/access.h"
#include "parallelizers/placement/mark.h"
#include "tests/support/files.h"
#include "tests/support/temporary_directory.h"

namespace oslo {
namespace {

namespace fs = std::filesystem;
using ::oslo::test::contents;
using ::oslo::test::error_of;
using ::oslo::test::TemporaryDirectory;
using ::oslo::test::write_contents;

constexpr int64_t kVocabulary = 53;
constexpr int64_t kWidth = 12;

/// One of everything: a vocabulary that no size divides, a fused projection, a column and a row
/// linear, a tie as C++ programs write it, whole parameters and buffers of two dtypes.
struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    wte = register_module("wte", torch::nn::Embedding(kVocabulary, kWidth));
    qkv = register_module("qkv", torch::nn::Linear(kWidth, 3 * kWidth));
    proj = register_module("proj", torch::nn::Linear(kWidth, kWidth));
    norm = register_module("norm", torch::nn::BatchNorm1d(kWidth));
    scale = register_parameter("scale", at::ones({}));
    mask = register_buffer("mask", at::ones({3, 3}, at::kBool).tril());
    head = register_module(
        "head", torch::nn::Linear(torch::nn::LinearOptions(kWidth, kVocabulary).bias(false)));
    head->weight = wte->weight;
  }
  torch::nn::Embedding wte{nullptr};
  torch::nn::Linear qkv{nullptr}, proj{nullptr}, head{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  at::Tensor scale, mask;
};
using Model = std::shared_ptr<ModelImpl>;

const std::set<std::string> kKeys = {"head.weight",       "mask",
                                     "norm.bias",         "norm.num_batches_tracked",
                                     "norm.running_mean", "norm.running_var",
                                     "norm.weight",       "proj.bias",
                                     "proj.weight",       "qkv.bias",
                                     "qkv.weight",        "scale",
                                     "wte.weight"};

/// Whole values that depend on `seed` only: the same on every rank.
Model make_model(int seed) {
  const at::AutoGradMode no_grad(false);
  auto model = std::make_shared<ModelImpl>();
  auto generator = at::detail::createCPUGenerator(seed);
  for (at::Tensor& tensor : model->parameters()) tensor.normal_(0, 1, generator);
  for (at::Tensor& tensor : model->buffers()) tensor.random_(0, 2, generator);
  return model;
}

void cut(const at::Tensor& parameter, const MeshPtr& mesh, const Placement& placement,
         const std::string& name) {
  mark_parameter(parameter,
                 std::make_shared<const Layout>(make_layout(mesh, {placement}, parameter.sizes())),
                 name);
}

Model make_parallel(int seed, const MPU& mpu) {
  Model model = make_model(seed);
  if (mpu.get_tensor_parallel_world_size() == 1) return model;
  const MeshPtr& mesh = mpu.tensor_mesh();
  cut(model->wte->weight, mesh, Placement::shard(0), "wte.weight");
  cut(model->qkv->weight, mesh, Placement::shard(0, 3), "qkv.weight");
  cut(model->qkv->bias, mesh, Placement::shard(0, 3), "qkv.bias");
  cut(model->proj->weight, mesh, Placement::shard(1), "proj.weight");
  return model;
}

/// Every tensor in use as a whole; collective.
StateDict whole_state(const ModelImpl& model) {
  const at::AutoGradMode no_grad(false);
  StateDict state;
  const ModelState parts(model);
  for (const auto& [name, number] : parts.names) {
    state.insert(name, full_tensor(parts.tensors[number].local).detach().clone());
  }
  return state;
}

void expect_equal(const StateDict& actual, const StateDict& expected) {
  EXPECT_EQ(actual.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    const at::Tensor* found = actual.find(name);
    ASSERT_NE(found, nullptr) << name;
    EXPECT_EQ(found->scalar_type(), tensor.scalar_type()) << name;
    EXPECT_TRUE(at::equal(*found, tensor)) << name;
  }
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

std::set<std::string> keys(const StateDict& state) {
  std::set<std::string> names;
  for (const auto& [name, _] : state) names.insert(name);
  return names;
}

struct Sizes {
  int world, tensor, pipeline;
};
void PrintTo(const Sizes& mesh, std::ostream* out) {
  *out << mesh.world << " ranks, tensor " << mesh.tensor << ", pipeline " << mesh.pipeline;
}
MpuOptions options_of(const Sizes& mesh) {
  return MpuOptions().tensor_parallel_size(mesh.tensor).pipeline_parallel_size(mesh.pipeline);
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
  // Each of the files, and the folder, into one device.
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

class TwoByTwo : public ::testing::Test {
 protected:
  static constexpr Sizes kMesh = {4, 2, 1};

  void save(int seed, const SaveOptions& options = {}) {
    run_as_threads(kMesh.world, [&](World world) {
      const MPU mpu(world, options_of(kMesh));
      save_parallelized(*make_parallel(seed, mpu), mpu, target_, options);
    });
  }

  /// Loads on every rank, where it must fail with one message and change nothing.
  std::string failed_load(const std::function<void(ModelImpl&)>& change = {}, Sizes mesh = kMesh) {
    std::set<std::string> messages;
    std::mutex mutex;
    run_as_threads(mesh.world, [&](World world) {
      const MPU mpu(world, options_of(mesh));
      const Model model = make_parallel(2, mpu);
      if (change) change(*model);
      const StateDict before = whole_state(*model);
      const std::string message = error_of([&] { load_parallelized(*model, mpu, target_); });
      expect_equal(whole_state(*model), before);
      const std::lock_guard<std::mutex> lock(mutex);
      messages.insert(message);
    });
    EXPECT_EQ(messages.size(), 1u);
    return *messages.begin();
  }

  void expect_seed(int seed) {
    run_as_threads(kMesh.world, [&](World world) {
      const MPU mpu(world, options_of(kMesh));
      const Model loaded = make_parallel(9, mpu);
      load_parallelized(*loaded, mpu, target_);
      expect_equal(whole_state(*loaded), whole_state(*make_model(seed)));
    });
  }

  const TemporaryDirectory folder_;
  const std::string target_ = folder_ / "ckpt";
  const std::string second_ = target_ + "/pytorch_model_tp_1_pp_0.safetensors";
  const std::string index_ = target_ + "/" + kIndexName;
};

#define EXPECT_SAYS(text, words) \
  EXPECT_NE((text).find(words), std::string::npos) << "the message was: " << (text)

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

TEST_F(TwoByTwo, TheIndexSaysWhereEachPartIs) {
  save(1);
  const CheckpointIndex index = CheckpointIndex::read(index_);
  EXPECT_EQ(index.mesh.tensor, 2);
  EXPECT_EQ(index.mesh.data, 2);
  EXPECT_EQ(index.files.size(), 2u);
  EXPECT_EQ(index.ties, (std::map<std::string, std::string>{{"head.weight", "wte.weight"}}));
  const CheckpointIndex::Tensor& qkv = index.tensors.at("qkv.weight");
  EXPECT_EQ(qkv.shape, (std::vector<int64_t>{3 * kWidth, kWidth}));
  EXPECT_EQ(qkv.dtype, at::kFloat);
  ASSERT_EQ(qkv.parts.size(), 2u);
  EXPECT_EQ(to_string(qkv.parts[1].cuts), "dim 0: part 1 of 3 x (6+6)");
  EXPECT_EQ(to_string(index.tensors.at("wte.weight").parts[0].cuts), "dim 0: part 0 of 27+26");
  ASSERT_EQ(index.tensors.at("norm.running_mean").parts.size(), 1u);
  EXPECT_EQ(index.tensors.at("norm.running_mean").parts[0].file,
            "pytorch_model_tp_0_pp_0.safetensors");
  // Written again it is the same file.
  index.write(folder_ / "again.json");
  EXPECT_EQ(contents(folder_ / "again.json"), contents(index_));
}

TEST_F(TwoByTwo, RefusesMissingAndEmptyFolders) {
  EXPECT_SAYS(failed_load(), "there is no checkpoint " + target_);
  fs::create_directory(target_);
  EXPECT_SAYS(failed_load(), "the folder is empty");
  write_contents(target_ + "/config.json", "{}");
  EXPECT_SAYS(failed_load(), "it has neither oslo_checkpoint.json, model.safetensors");
}

TEST_F(TwoByTwo, RefusesAMissingShardACutFileAndEveryFlippedByte) {
  save(1);
  const std::string bytes = contents(second_);
  fs::remove(second_);
  EXPECT_SAYS(failed_load(), "lacks its file pytorch_model_tp_1_pp_0.safetensors");
  write_contents(second_, bytes.substr(0, bytes.size() - 1));
  EXPECT_SAYS(failed_load(), "pytorch_model_tp_1_pp_0.safetensors has ");
  for (const size_t at : {size_t{0}, size_t{30}, bytes.size() / 2, bytes.size() - 1}) {
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    write_contents(second_, flipped);
    EXPECT_SAYS(failed_load(), "pytorch_model_tp_1_pp_0.safetensors is damaged");
  }
  write_contents(second_, bytes);
  expect_seed(1);
}

TEST_F(TwoByTwo, RefusesADamagedIndex) {
  save(1);
  const std::string text = contents(index_);
  for (size_t at = 0; at < text.size(); at += 7) {
    std::string flipped = text;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x04);
    // Between two values a byte may say nothing: then nothing is damaged.
    const auto parsed = nlohmann::json::parse(flipped, nullptr, false);
    if (parsed == nlohmann::json::parse(text)) continue;
    write_contents(index_, flipped);
    const std::string message = error_of([&] { CheckpointIndex::read(index_); });
    EXPECT_SAYS(message, index_);
  }
  write_contents(index_, text.substr(0, text.size() / 2));
  EXPECT_SAYS(failed_load(), "oslo_checkpoint.json is cut or damaged: it is no JSON");
  fs::remove(index_);
  EXPECT_SAYS(failed_load(), "it has neither oslo_checkpoint.json");
}

TEST_F(TwoByTwo, TheIndexIsReadStrictly) {
  save(1);
  const nlohmann::json good = nlohmann::json::parse(contents(index_));
  const auto message = [&](const std::string& pointer, const nlohmann::json& value) {
    nlohmann::json bad = good;
    bad.erase("checksum");
    const nlohmann::json::json_pointer where(pointer);
    if (value.is_discarded()) {
      bad[where.parent_pointer()].erase(where.back());
    } else {
      bad[where] = value;
    }
    // As if the writer had meant it: this is about contents, not about damage.
    bad["checksum"] = sha256(bad.dump());
    write_contents(index_, bad.dump());
    return error_of([&] { CheckpointIndex::read(index_); });
  };
  const nlohmann::json gone(nlohmann::json::value_t::discarded);
  EXPECT_SAYS(message("/version", 2), "has format version 2, this library reads version 1");
  EXPECT_SAYS(message("/format", "other"), "is no index of a checkpoint");
  EXPECT_SAYS(message("/files", gone), "has no entry 'files'");
  EXPECT_SAYS(message("/mesh/tensor", "two"), "mesh, tensor should be a whole number");
  EXPECT_SAYS(message("/mesh/rank_order", "up"), "'up'");
  EXPECT_SAYS(message("/tensors/scale/dtype", "float31"), "'scale', dtype is 'float31'");
  EXPECT_SAYS(message("/tensors/scale/parts", nlohmann::json::array()), "'scale' has no parts");
  EXPECT_SAYS(message("/tensors/scale/parts/0/file", "x"), "lies in 'x', which is not listed");
  EXPECT_SAYS(message("/files/..~1x.bin", good["files"].front()), "is not the name of a file");
  EXPECT_SAYS(message("/tensors/wte.weight/parts/0/cuts/0/dim", 2), "cuts dimension 2");
  EXPECT_SAYS(message("/tensors/wte.weight/parts/0/cuts/0/rank", 2), "is rank 2 of 2");
  EXPECT_SAYS(message("/tensors/wte.weight/parts/0/cuts/0/runs/0/pieces/0", 26), "cuts 52 of");
  EXPECT_SAYS(message("/tensors/wte.weight/parts/0/cuts/0/runs/0/repeat", 2), "more than the 53");
  EXPECT_SAYS(message("/ties/head.weight", "nothing"), "second name of 'nothing'");
}

TEST_F(TwoByTwo, RefusesAnotherModel) {
  save(1);
  EXPECT_SAYS(failed_load([](ModelImpl& m) { m.register_buffer("extra", at::ones({1})); }),
              "has no 'extra', which the model has");
  EXPECT_SAYS(failed_load([](ModelImpl& m) { m.unregister_module("proj"); }),
              "has 'proj.bias', the model has not");
  EXPECT_SAYS(failed_load([](ModelImpl& m) {
                m.mask.resize_({3, 4});
              }),
              "'mask' of shape [3, 3], in the model it has [3, 4]");
  EXPECT_SAYS(failed_load([](ModelImpl& m) { m.scale.set_data(at::ones({}, at::kDouble)); }),
              "'scale' as Float, the model has it as Double");
}

TEST_F(TwoByTwo, RefusesAnotherLayoutNamingBoth) {
  save(1);
  const std::string other_size = failed_load({}, {4, 4, 1});
  EXPECT_SAYS(other_size, "tensor_parallel_size 2, pipeline_parallel_size 1");
  EXPECT_SAYS(other_size, "tensor_parallel_size 4, pipeline_parallel_size 1");
  EXPECT_SAYS(other_size, "merge_checkpoints(true)");
  EXPECT_SAYS(other_size, "14+13+13+13");
  EXPECT_SAYS(failed_load({}, {1, 1, 1}), "this model wants it as [whole]");
  const std::string other_cut = failed_load([](ModelImpl& m) {
    const MeshPtr mesh = layout(m.proj->weight)->mesh();
    m.proj->weight = at::zeros({kWidth, kWidth});
    cut(m.proj->weight, mesh, Placement::shard(0), "proj.weight");
  });
  EXPECT_SAYS(other_cut, "'proj.weight' lies there as [dim 1: part 0 of 6+6]");
  EXPECT_SAYS(other_cut, "wants it as [dim 0: part 0 of 6+6]");
}

TEST_F(TwoByTwo, RefusesDamageInAMergedFile) {
  save(1, SaveOptions().merge_checkpoints(true));
  const std::string file = target_ + "/model.safetensors";
  std::string bytes = contents(file);
  bytes.back() ^= 1;
  write_contents(file, bytes);
  EXPECT_SAYS(failed_load(), "model.safetensors is damaged");
  // One of the two files is enough.
  fs::remove(file);
  expect_seed(1);
  fs::remove(target_ + "/pytorch_model.bin");
  EXPECT_SAYS(failed_load(), "lacks its file");
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

/// Saves where one rank's model is broken by `change`; all ranks must end with one message.
class FailedSave : public TwoByTwo {
 protected:
  std::string failed_save(int culprit, const std::function<void(ModelImpl&)>& change,
                          const SaveOptions& options = {}) {
    std::set<std::string> messages;
    std::mutex mutex;
    run_as_threads(kMesh.world, [&](World world) {
      const MPU mpu(world, options_of(kMesh));
      const Model model = make_parallel(2, mpu);
      if (world.rank() == culprit) change(*model);
      const std::string message =
          error_of([&] { save_parallelized(*model, mpu, target_, options); });
      const std::lock_guard<std::mutex> lock(mutex);
      messages.insert(message);
    });
    EXPECT_EQ(messages.size(), 1u);
    EXPECT_EQ(names_in(folder_.path()), std::set<std::string>{"ckpt"});
    expect_seed(1);
    return *messages.begin();
  }
};

TEST_F(FailedSave, LeavesThePreviousCheckpointOnEveryRank) {
  save(1);
  // Found only while rank 1 writes: the format refuses a tensor without data.
  EXPECT_SAYS(failed_save(1,
                          [](ModelImpl& m) {
                            const MeshPtr mesh = layout(m.qkv->bias)->mesh();
                            m.qkv->bias = at::empty({3 * kWidth}, at::kMeta);
                            cut(m.qkv->bias, mesh, Placement::shard(0, 3), "qkv.bias");
                          }),
              "rank 1: cannot write 'qkv.bias' to ");
  EXPECT_SAYS(failed_save(3, [](ModelImpl& m) { m.register_buffer("mine", at::ones({1})); }),
              "rank 3 and rank 0 save different models");
  EXPECT_SAYS(
      failed_save(
          2, [](ModelImpl& m) { m.qkv->bias.unsafeGetTensorImpl()->set_sizes_contiguous({5}); }),
      "rank 2: parallel parameter qkv.bias");
}

TEST_F(FailedSave, ForeignFilesAndOptionsThatDiffer) {
  save(1);
  write_contents(target_ + "/train.cpp", "work");
  EXPECT_SAYS(failed_save(-1, {}), "which no save wrote");
  fs::remove(target_ + "/train.cpp");
  run_as_threads(4, [&](World world) {
    const MPU mpu(world, options_of(kMesh));
    const Model model = make_parallel(2, mpu);
    const auto options = SaveOptions().merge_checkpoints(world.rank() == 2);
    EXPECT_SAYS(error_of([&] { save_parallelized(*model, mpu, target_, options); }),
                "rank 2 and rank 0 call save_parallelized with different folders or options");
  });
  EXPECT_SAYS(error_of([] { SaveOptions().format("pickle"); }), "'pickle' is not known");
  EXPECT_SAYS(error_of([] { SaveOptions().config(3); }), "not number");
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
    const auto mesh = std::make_shared<Mesh>(std::vector<std::shared_ptr<Group>>{mpu.data_group()});
    const Model model = make_model(1);
    cut(model->wte->weight, mesh, Placement::shard(0), "wte.weight");
    EXPECT_SAYS(error_of([&] { save_parallelized(*model, mpu, folder / "ckpt"); }),
                "'wte.weight' is cut over ranks outside the tensor group");
    save_parallelized(*model, mpu, folder / "merged", SaveOptions().merge_checkpoints(true));
    const Model loaded = make_model(2);
    cut(loaded->wte->weight, mesh, Placement::shard(0), "wte.weight");
    load_parallelized(*loaded, mpu, folder / "merged");
    expect_equal(whole_state(*loaded), whole_state(*make_model(1)));
  });
  EXPECT_FALSE(fs::exists(folder / "ckpt"));
}

}  // namespace
}  // namespace oslo
