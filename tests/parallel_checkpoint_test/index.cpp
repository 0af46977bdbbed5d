// oslo_checkpoint.json: what it says, and how strictly it is read.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/index/checkpoint_index.h"
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

/// As libraries before wrote it: each part with all of its cuts.
nlohmann::json first_version(nlohmann::json json, const CheckpointIndex& index) {
  json.erase("cuts");
  json.erase("places");
  json.erase("checksum");
  json["version"] = 1;
  for (const auto& [name, tensor] : index.tensors) {
    nlohmann::json parts = nlohmann::json::array();
    for (const CheckpointIndex::Part& part : tensor.parts) {
      nlohmann::json cuts = nlohmann::json::array();
      for (const auto& [dim, rank, cut] : part.cuts) {
        nlohmann::json runs = nlohmann::json::array();
        for (const Cut::Run& run : cut->runs()) {
          const std::vector<int64_t> pieces(run.pieces.begin(), run.pieces.end());
          runs.push_back({{"repeat", run.repeat}, {"pieces", pieces}});
        }
        cuts.push_back({{"dim", dim}, {"rank", rank}, {"runs", runs}});
      }
      parts.push_back({{"file", part.file.text()}, {"cuts", cuts}});
    }
    nlohmann::json& entry = json["tensors"][name];
    entry.erase("cuts");
    entry.erase("places");
    entry["parts"] = parts;
  }
  return json;
}

void write_with_checksum(const fs::path& path, nlohmann::json json) {
  json.erase("checksum");
  json["checksum"] = sha256(json.dump());
  write_contents(path, json.dump());
}

TEST_F(TwoByTwo, AnIndexOfTheFirstVersionIsRead) {
  save(1, SaveOptions().random_states(true));
  const std::string now = contents(index_);
  const CheckpointIndex index = CheckpointIndex::read(index_);
  write_with_checksum(index_, first_version(nlohmann::json::parse(now), index));
  const CheckpointIndex old = CheckpointIndex::read(index_);
  for (const auto& [name, tensor] : index.tensors) {
    const CheckpointIndex::Tensor& same = old.tensors.at(name);
    ASSERT_EQ(same.parts.size(), tensor.parts.size()) << name;
    for (size_t i = 0; i < tensor.parts.size(); ++i) {
      EXPECT_TRUE(same.parts[i].file == tensor.parts[i].file) << name;
      EXPECT_TRUE(same.parts[i].cuts == tensor.parts[i].cuts) << name;
    }
  }
  expect_seed(1);
  old.write(index_);
  EXPECT_EQ(contents(index_), now);
}

TEST_F(TwoByTwo, TheIndexIsReadStrictly) {
  save(1);
  const nlohmann::json second = nlohmann::json::parse(contents(index_));
  const nlohmann::json first = first_version(second, CheckpointIndex::read(index_));
  const auto message = [&](const nlohmann::json& good, const std::string& pointer,
                           const nlohmann::json& value) {
    nlohmann::json bad = good;
    const nlohmann::json::json_pointer where(pointer);
    if (value.is_discarded()) {
      bad[where.parent_pointer()].erase(where.back());
    } else {
      bad[where] = value;
    }
    // As if the writer had meant it: this is about contents, not about damage.
    write_with_checksum(index_, bad);
    return error_of([&] { CheckpointIndex::read(index_); });
  };
  const nlohmann::json gone(nlohmann::json::value_t::discarded);
  for (const nlohmann::json& good : {first, second}) {
    EXPECT_SAYS(message(good, "/version", 3),
                "has format version 3, this library reads versions 1 to 2; use the library that");
    EXPECT_SAYS(message(good, "/version", 0), "has format version 0");
    EXPECT_SAYS(message(good, "/format", "other"), "is no index of a checkpoint");
    EXPECT_SAYS(message(good, "/files", gone), "has no entry 'files'");
    EXPECT_SAYS(message(good, "/mesh/tensor", "two"), "mesh, tensor should be a whole number");
    EXPECT_SAYS(message(good, "/mesh/rank_order", "up"), "'up'");
    EXPECT_SAYS(message(good, "/tensors/scale/dtype", "float31"), "'scale', dtype is 'float31'");
    EXPECT_SAYS(message(good, "/files/..~1x.bin", good["files"].front()), "is not the name of a");
    EXPECT_SAYS(message(good, "/ties/head.weight", "nothing"), "second name of 'nothing'");
  }
  const std::string tensor = "/tensors/wte.weight", part = tensor + "/parts/0/cuts/0";
  const nlohmann::json none = nlohmann::json::array();
  EXPECT_SAYS(message(first, "/tensors/scale/parts", none), "'scale' has no parts");
  EXPECT_SAYS(message(first, "/tensors/scale/parts/0/file", "x"), "lies in 'x', which is not");
  EXPECT_SAYS(message(first, part + "/dim", 2), "cuts dimension 2");
  EXPECT_SAYS(message(first, part + "/rank", 2), "is rank 2 of 2");
  EXPECT_SAYS(message(first, part + "/runs/0/pieces/0", 26), "cuts 52 of the 53 elements");
  EXPECT_SAYS(message(first, part + "/runs/0/repeat", 2), "cuts 106 of the 53 elements");
  EXPECT_SAYS(message(first, part + "/runs", none), "has no runs");

  EXPECT_SAYS(message(second, "/cuts", gone), "has no entry 'cuts'");
  EXPECT_SAYS(message(second, "/places", gone), "has no entry 'places'");
  EXPECT_SAYS(message(second, tensor + "/places", gone), "has no entry 'places'");
  EXPECT_SAYS(message(second, tensor + "/places", 100), "'wte.weight' lies at places 100 of");
  EXPECT_SAYS(message(second, tensor + "/cuts/0/0", 2), "cuts dimension 2");
  EXPECT_SAYS(message(second, tensor + "/cuts/0/1", 100), "the number of one of");
  EXPECT_SAYS(message(second, tensor + "/cuts", none), "has 0 cuts, and a part of it is made by");
  const int64_t cut = second["tensors"]["wte.weight"]["cuts"][0][1];
  const int64_t places = second["tensors"]["wte.weight"]["places"];
  const std::string runs = c10::str("/cuts/", cut, "/0"), place = c10::str("/places/", places);
  EXPECT_EQ(second["cuts"][cut],
            nlohmann::json::parse(R"([{"repeat": 1, "pieces": [[1, 27], [1, 26]]}])"));
  EXPECT_SAYS(message(second, runs + "/pieces/0/1", 26), "cuts 52 of the 53 elements");
  EXPECT_SAYS(message(second, runs + "/pieces/0", 27), "pieces[0] should be a list");
  EXPECT_SAYS(message(second, runs + "/pieces/0/0", int64_t{1} << 40), "pieces that are read at");
  EXPECT_SAYS(message(second, runs + "/pieces/0/1", INT64_MAX), "more elements than a dimension");
  EXPECT_SAYS(message(second, runs + "/repeat", 0), "has no pieces, or another number");
  EXPECT_SAYS(message(second, runs + "/pieces", none), "has no pieces, or another number");
  EXPECT_SAYS(message(second, place, none), "has no parts");
  EXPECT_SAYS(message(second, place + "/0/0", "x"), "lies in 'x', which is not listed");
  EXPECT_SAYS(message(second, place + "/0/1", 1), "has 1 cuts, and a part of it is made by number");
  EXPECT_SAYS(message(second, place + "/0/2", 2), "is rank 2 of 2");
  const nlohmann::json file = second["places"][places][0][0];
  EXPECT_SAYS(message(second, place + "/0", {file, 0}), "is no file with a number and a rank");
}

}  // namespace
}  // namespace oslo::checkpoint_test
