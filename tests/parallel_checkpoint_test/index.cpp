// oslo_checkpoint.json: what it says, and how strictly it is read.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_index.h"
#include "checkpoint/storage/hash.h"
#include "tests/parallel_checkpoint_test/two_by_two.h"
#include "tests/support/files.h"

namespace oslo::checkpoint_test {
namespace {

using test::contents;
using test::write_contents;

TEST_F(TwoByTwo, TheIndexSaysWhereEachPartIs) {
  save(1);
  const CheckpointIndex index = CheckpointIndex::read(index_);
  EXPECT_EQ(index.mesh.size("tensor"), 2);
  EXPECT_EQ(index.mesh.size("data"), 2);
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
  EXPECT_SAYS(failed_load(), "oslo_checkpoint.json is cut or damaged: not valid JSON");
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

}  // namespace
}  // namespace oslo::checkpoint_test
