// What is written can be read: the limits of readers hold for writers, and an index of many ranks
// stays far below them.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/directory/checkpoint_folder.h"
#include "checkpoint/formats/safetensors.h"
#include "checkpoint/formats/torch_bin/torch_bin.h"
#include "checkpoint/index/checkpoint_index.h"
#include "tests/parallel_checkpoint_test/two_by_two.h"
#include "tests/support/files.h"

namespace oslo::checkpoint_test {
namespace {

FileContents a_file() {
  return {uint64_t{1} << 30, FileContents::Hash::xxh128, std::string(32, 'a')};
}

/// Of matrices cut by rows over ranks, of tensors that all differ in shape or of layers that are
/// alike: what the ranks from `first` to `last` hold.
CheckpointIndex index_of(int ranks, int tensors, bool alike, int first, int last) {
  CheckpointIndex index;
  index.mesh = RankGrid::of_sizes(1, ranks, 1, RankOrder::pp_dp_tp);
  std::vector<FileName> files;
  for (int rank = 0; rank < ranks; ++rank) {
    files.emplace_back(c10::str("pytorch_model_tp_", rank, "_pp_0.safetensors"));
    if (rank >= first && rank < last) index.files[files.back()] = a_file();
  }
  std::map<int64_t, CutPtr> cuts;
  for (int i = 0; i < tensors; ++i) {
    const int64_t rows = 4099 + (alike ? i % 8 : i);
    CutPtr& cut = cuts[rows];
    if (!cut) cut = std::make_shared<const Cut>(Cut::balanced(rows, ranks));
    CheckpointIndex::Tensor tensor{{rows, 512}, at::kFloat, {}};
    for (int rank = first; rank < last; ++rank) {
      tensor.parts.push_back({files[static_cast<size_t>(rank)], {{0, rank, cut}}});
    }
    index.tensors[c10::str("model.layers.", i, ".weight")] = std::move(tensor);
  }
  return index;
}
CheckpointIndex index_of(int ranks, int tensors, bool alike) {
  return index_of(ranks, tensors, alike, 0, ranks);
}

bool same_parts(const CheckpointIndex& a, const CheckpointIndex& b) {
  for (const auto& [name, tensor] : a.tensors) {
    const auto& other = b.tensors.at(name);
    if (other.shape != tensor.shape || other.parts.size() != tensor.parts.size()) return false;
    for (size_t i = 0; i < tensor.parts.size(); ++i) {
      if (tensor.parts[i].file != other.parts[i].file) return false;
      if (tensor.parts[i].cuts != other.parts[i].cuts) return false;
    }
  }
  return a.tensors.size() == b.tensors.size() && a.files == b.files;
}

TEST(IndexSize, RanksJoinTheirsIntoOne) {
  CheckpointIndex joined;
  for (int rank = 0; rank < 7; ++rank) joined.add(index_of(7, 9, true, rank, rank + 1));
  EXPECT_TRUE(same_parts(index_of(7, 9, true), joined));
  // Equal cuts are one, or 512 ranks would take memory for 512 times 512.
  for (const auto& [_, tensor] : joined.tensors) {
    for (const auto& part : tensor.parts) {
      EXPECT_EQ(part.cuts[0].cut, tensor.parts[0].cuts[0].cut);
    }
  }
}

TEST(IndexSize, GrowsWithRanksAndTensorsAndNotWithTheirProduct) {
  const test::TemporaryDirectory folder;
  const auto bytes = [&](int ranks, int tensors, bool alike) {
    index_of(ranks, tensors, alike).write(folder / "index.json");
    return static_cast<int64_t>(fs::file_size(folder / "index.json"));
  };
  for (const bool alike : {true, false}) {
    const int64_t few = bytes(16, 100, alike);
    const int64_t ranks = bytes(48, 100, alike) - few, tensors = bytes(16, 300, alike) - few;
    const int64_t both = bytes(48, 300, alike) - few;
    EXPECT_LT(both, (ranks + tensors) * 11 / 10) << alike;
  }
}

// Each layer of a model has a cut of its own, in memory: equal ones are written once.
TEST(IndexSize, EqualCutsOfManyTensorsAreWrittenOnce) {
  const test::TemporaryDirectory folder;
  CheckpointIndex index = index_of(7, 9, true);
  for (auto& [_, tensor] : index.tensors) {
    const auto own = std::make_shared<const Cut>(Cut::balanced(tensor.shape[0], 7));
    for (auto& part : tensor.parts) part.cuts[0].cut = own;
  }
  index.write(folder / "index.json");
  const auto written = nlohmann::json::parse(test::contents(folder / "index.json"));
  EXPECT_EQ(written["cuts"].size(), 8u);  // as many as shapes
  EXPECT_EQ(written["places"].size(), 1u);
  const CheckpointIndex read = CheckpointIndex::read(folder / "index.json");
  for (const auto& [name, tensor] : read.tensors) {
    EXPECT_EQ(*tensor.parts[6].cuts[0].cut, *index.tensors.at(name).parts[6].cuts[0].cut) << name;
  }
}

TEST(IndexSize, OfManyRanksAndTensors) {
  const test::TemporaryDirectory folder;
  auto seconds = [since = std::chrono::steady_clock::now()]() mutable {
    const auto before = std::exchange(since, std::chrono::steady_clock::now());
    return std::chrono::duration<double>(since - before).count();
  };
  for (const bool alike : {true, false}) {
    seconds();
    const CheckpointIndex index = index_of(512, 10'000, alike);
    const double made = seconds();
    index.write(folder / "index.json");
    const double written = seconds();
    const CheckpointIndex read = CheckpointIndex::read(folder / "index.json");
    std::cout << "512 ranks x 10,000 tensors " << (alike ? "of 8 shapes" : "of 10,000 shapes")
              << ": " << static_cast<double>(fs::file_size(folder / "index.json")) / 1e6
              << " MB; made in " << made << " s, written in " << written << " s, read in "
              << seconds() << " s\n";
    EXPECT_TRUE(same_parts(index, read));
  }
}

TEST(IndexLimits, AreThoseOfTheReaderWhenItIsWritten) {
  const test::TemporaryDirectory folder;
  const fs::path path = folder / "index.json";
  const CheckpointIndex index = index_of(3, 5, false);
  index.write(path);
  const std::string written = test::contents(path);
  const auto count = [](const nlohmann::json& json) {
    std::function<size_t(const nlohmann::json&)> all = [&](const nlohmann::json& value) {
      size_t values = 1;
      if (value.is_structured()) {
        for (const auto& item : value) values += all(item);
      }
      return values;
    };
    return all(json);
  };
  IndexLimits exact;
  exact.json = {written.size(), count(nlohmann::json::parse(written)), 6};
  exact.parts = 15;
  exact.pieces = 15;
  const auto read = [&](const IndexLimits& limits) {
    CheckpointIndex::read(InputFile(path), nullptr, limits);
  };
  index.write(path, exact);
  EXPECT_NO_THROW(read(exact));
  const std::vector<std::pair<const char*, std::function<void(IndexLimits&)>>> smaller = {
      {"bytes", [](IndexLimits& limits) { --limits.json.bytes; }},
      {"values", [](IndexLimits& limits) { --limits.json.values; }},
      {"nested deeper", [](IndexLimits& limits) { --limits.json.depth; }},
      {"parts", [](IndexLimits& limits) { --limits.parts; }},
      {"pieces", [](IndexLimits& limits) { --limits.pieces; }}};
  for (const auto& [what, change] : smaller) {
    IndexLimits limits = exact;
    change(limits);
    EXPECT_SAYS(error_of([&] { read(limits); }), what);
    fs::remove(path);
    const std::string message = error_of([&] { index.write(path, limits); });
    EXPECT_SAYS(message, "cannot write");
    EXPECT_SAYS(message, "index.json, which no load could read: ");
    EXPECT_SAYS(message, what);
    EXPECT_SAYS(message, "; save with SaveOptions().merge_checkpoints(true), or over fewer ranks");
    EXPECT_FALSE(fs::exists(path));
    index.write(path);
  }
}

TEST(IndexLimits, OfABinAreThoseOfItsReader) {
  const test::TemporaryDirectory folder;
  const auto write = [&](const StateDict& state) {
    return error_of([&] { write_torch_bin(folder / "x.bin", state); });
  };
  const at::Tensor one = at::ones({1});
  StateDict many;
  for (int i = 0; i < 300'000; ++i) many.insert(c10::str("weight.", i), one);
  EXPECT_SAYS(write(many), "x.bin, which no load could read: ");
  EXPECT_FALSE(fs::exists(folder / "x.bin"));
  const StateDict named = {{std::string(kLargestPickle, 'n'), one}};
  EXPECT_SAYS(write(named), "bytes, and at most 100000000 are read; save fewer tensors in one");
  EXPECT_FALSE(fs::exists(folder / "x.bin"));
}

// What is refused is refused before anything is replaced.
TEST(IndexLimits, ASaveThatNoLoadCouldReadLeavesTheOneBefore) {
  const test::TemporaryDirectory folder;
  const MPU alone(World::alone());
  const std::string target = folder / "ckpt";
  const auto save = [&](const std::vector<int64_t>& shape, const SaveOptions& options) {
    auto model = std::make_shared<torch::nn::Module>();
    model->register_parameter("weight", at::zeros(shape), false);
    save_parallelized(*model, alone, target, options);
  };
  save({3}, {});
  for (const char* format : {"bin", "safetensors"}) {
    for (const bool merged : {false, true}) {
      const SaveOptions options = SaveOptions().format(format).merge_checkpoints(merged);
      const std::string message = error_of([&] { save(std::vector<int64_t>(65, 1), options); });
      EXPECT_SAYS(message, "cannot write");
      EXPECT_SAYS(message, "65 dimensions, and at most 64");
      EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"ckpt"});
      const CheckpointFolder kept(target);
      kept.verify();
      EXPECT_TRUE(at::equal(kept.read("weight", nullptr), at::zeros({3})));
    }
  }
}

}  // namespace
}  // namespace oslo::checkpoint_test
