// Loads and saves that fail: with one message on every rank, and nothing changed.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <functional>
#include <mutex>
#include <set>
#include <string>

#include "tests/parallel_checkpoint_test/two_by_two.h"
#include "tests/support/files.h"

namespace oslo::checkpoint_test {
namespace {

using test::contents;
using test::write_contents;

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
                            const ContextPtr context = layout(m.qkv->bias)->context();
                            m.qkv->bias = at::empty({3 * kWidth}, at::kMeta);
                            cut(m.qkv->bias, context, Placement::shard(0, 3), "qkv.bias");
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

}  // namespace
}  // namespace oslo::checkpoint_test
