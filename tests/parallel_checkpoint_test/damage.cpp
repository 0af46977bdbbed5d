// Checkpoints that no save wrote: each is loaded, or refused with an oslo::Error and nothing
// changed; where the format has checksums, none is loaded as another model.
#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/formats/safetensors.h"
#include "checkpoint/formats/torch_bin/torch_bin.h"
#include "tests/parallel_checkpoint_test/two_by_two.h"
#include "tests/support/damage.h"
#include "tests/support/files.h"

namespace oslo::checkpoint_test {
namespace {

using test::contents;
using test::write_contents;

bool equal(const StateDict& a, const StateDict& b) {
  for (const auto& [name, tensor] : a) {
    if (!at::equal(tensor, b.at(name))) return false;
  }
  return a.size() == b.size();
}

/// A checkpoint of `make_model(1)` in a folder, saved by one process.
class DamagedCheckpoint : public ::testing::Test {
 protected:
  void save(const std::string& name, const SaveOptions& options) {
    const MPU alone(World::alone());
    save_parallelized(*original_, alone, folder_ / name, options);
  }
  std::string load_error(const fs::path& path) {
    const Model model = make_model(2);
    const std::string message = error_of([&] { load_state(*model, path); });
    EXPECT_TRUE(equal(whole_state(*model), whole_state(*make_model(2))));
    return message;
  }
  void expect_loads(const fs::path& path) {
    const Model model = make_model(2);
    load_state(*model, path);
    expect_equal(whole_state(*model), whole_state(*original_));
  }

  const TemporaryDirectory folder_;
  const Model original_ = make_model(1);
};

/// Does something to one file of a checkpoint's folder.
void damage_file(const fs::path& file, test::Dice& dice, const std::vector<fs::path>& others) {
  // What stands in binary files where it hurts.
  static const std::vector<std::string> words = {"PK\x03\x04",
                                                 "PK\x01\x02",
                                                 "PK\x05\x06",
                                                 "PK\x06\x06",
                                                 std::string(8, '\xff'),
                                                 std::string(8, '\0'),
                                                 std::string("\x08\0", 2),
                                                 "\xff\xff",
                                                 "\x7f",
                                                 "q\x01h\x01",
                                                 "(((",
                                                 std::string(5'000, 'N'),
                                                 "0",
                                                 "1",
                                                 "[",
                                                 "{\"",
                                                 "\"",
                                                 "F64",
                                                 "data/1",
                                                 "wte.weight"};
  const bool json = file.extension() == ".json";
  switch (dice.below(12)) {
    case 0:
      fs::remove(file);
      return;
    case 1: {
      fs::remove(file);
      const int kind = static_cast<int>(dice.below(4));
      if (kind == 0) fs::create_directory(file);
      if (kind == 1) {
        ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
      }
      if (kind == 2) fs::create_symlink(file, file);
      if (kind == 3) fs::create_symlink("/dev/zero", file);
      return;
    }
    case 2: {
      const std::string other = contents(dice.one_of(others));
      write_contents(file, other);
      return;
    }
    default:
      write_contents(file,
                     test::damaged(contents(file), dice, json ? test::hostile_words() : words));
  }
}

TEST_F(DamagedCheckpoint, IsLoadedOrRefused) {
  const nlohmann::json config = {{"n_embd", kWidth}};
  save("parts", SaveOptions().config(config));
  save("parts_bin", SaveOptions().format("bin"));
  save("merged", SaveOptions().merge_checkpoints(true).config(config));
  // As other programs leave them. The zip of a .bin has checksums, a safetensors file has none.
  fs::create_directory(folder_ / "bin");
  fs::copy_file(folder_ / "merged/pytorch_model.bin", folder_ / "bin/pytorch_model.bin");
  fs::create_directory(folder_ / "safetensors");
  fs::copy_file(folder_ / "merged/model.safetensors", folder_ / "safetensors/model.safetensors");

  const std::vector<std::string> kinds = {"parts", "parts_bin", "merged", "bin", "safetensors"};
  std::vector<fs::path> others;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder_.path())) {
    if (entry.is_regular_file()) others.push_back(entry.path());
  }
  std::sort(others.begin(), others.end());
  const StateDict saved = whole_state(*original_);
  const StateDict before = whole_state(*make_model(2));
  const fs::path copy = folder_ / "copy";
  int refused = 0, loaded = 0, changed = 0;
  const int count = test::damage_count(600);
  testing::internal::CaptureStderr();  // notes on missing indexes
  for (int seed = 0; seed < count; ++seed) {
    SCOPED_TRACE(seed);
    test::Dice dice(seed);
    const std::string& kind = dice.one_of(kinds);
    fs::remove_all(copy);
    fs::copy(folder_ / kind, copy, fs::copy_options::recursive);
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(copy)) {
      files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    damage_file(dice.one_of(files), dice, others);

    const Model model = make_model(2);
    try {
      load_state(*model, copy);
      ++loaded;
      const bool same = equal(whole_state(*model), saved);
      changed += !same;
      EXPECT_TRUE(same || kind == "safetensors") << kind;
    } catch (const Error& error) {
      ++refused;
      const std::string message = error.what();
      EXPECT_FALSE(message.empty());
      EXPECT_LT(message.size(), 4000u) << message;
      EXPECT_NO_THROW(nlohmann::json(message).dump()) << message;
      EXPECT_TRUE(equal(whole_state(*model), before)) << message;
    }
  }
  testing::internal::GetCapturedStderr();
  RecordProperty("refused", refused);
  RecordProperty("loaded", loaded);
  RecordProperty("loaded_with_other_values", changed);
  std::cout << count << " damaged checkpoints: " << refused << " refused, " << loaded << " loaded, "
            << changed << " of them another model (no checksum)\n";
  EXPECT_GT(refused, count / 2);
  EXPECT_GT(loaded, 0);
}

// One of a merged checkpoint's two files is enough to read, not to be whole.
TEST_F(DamagedCheckpoint, TheFileBesideTheOneThatIsRead) {
  save("merged", SaveOptions().merge_checkpoints(true));
  const fs::path file = folder_ / "merged/pytorch_model.bin";
  std::string bytes = contents(file);
  bytes[bytes.size() / 2] ^= 1;
  write_contents(file, bytes);
  EXPECT_SAYS(load_error(folder_ / "merged"), "pytorch_model.bin is damaged");
  fs::remove(file);
  expect_loads(folder_ / "merged");
}

TEST_F(DamagedCheckpoint, TheConfigBesideTheTensors) {
  for (const bool merge : {false, true}) {
    save("ckpt", SaveOptions().merge_checkpoints(merge).config({{"n_head", 12}}));
    expect_loads(folder_ / "ckpt");
    write_contents(folder_ / "ckpt/config.json", "{\n  \"n_head\": 16\n}\n");
    EXPECT_SAYS(load_error(folder_ / "ckpt"), "config.json is damaged");
    // Nothing is read from it.
    fs::remove(folder_ / "ckpt/config.json");
    expect_loads(folder_ / "ckpt");
  }
}

TEST_F(DamagedCheckpoint, OneFileIsCheckedByTheIndexBesideIt) {
  save("merged", SaveOptions().merge_checkpoints(true));
  const fs::path file = folder_ / "merged/model.safetensors";
  expect_loads(file);
  std::string bytes = contents(file);
  bytes.back() ^= 1;
  write_contents(file, bytes);
  EXPECT_SAYS(load_error(file), "model.safetensors is damaged");
}

TEST_F(DamagedCheckpoint, AMissingIndexIsSaid) {
  save("merged", SaveOptions().merge_checkpoints(true));
  const auto said = [&](const fs::path& path) {
    testing::internal::CaptureStderr();
    expect_loads(path);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said(folder_ / "merged"), "");
  fs::remove(folder_ / "merged" / kIndexName);
  EXPECT_SAYS(said(folder_ / "merged"), "oslo_checkpoint.json");
  EXPECT_SAYS(said(folder_ / "merged/model.safetensors"), "not checked");
  // Once a job, not once a rank.
  testing::internal::CaptureStderr();
  run_as_threads(2, [&](World world) {
    const MPU mpu(world, MpuOptions());
    load_parallelized(*make_model(2), mpu, folder_ / "merged");
  });
  const std::string all = testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 1) << all;
  // The zip has its own checksums, and other programs' files were never indexed.
  EXPECT_EQ(said(folder_ / "merged/pytorch_model.bin"), "");
  write_safetensors(folder_ / "merged/model.safetensors", whole_state(*original_));
  EXPECT_EQ(said(folder_ / "merged"), "");
}

// As Hugging Face's cache lies on a disk.
TEST_F(DamagedCheckpoint, LinksToBlobsAreOrdinary) {
  save("merged", SaveOptions().merge_checkpoints(true));
  testing::internal::CaptureStderr();  // that there is no index
  for (const char* name : {"model.safetensors", "pytorch_model.bin"}) {
    fs::remove_all(folder_ / "cache");
    fs::create_directories(folder_ / "cache/blobs");
    fs::create_directories(folder_ / "cache/snapshots/main");
    fs::copy_file(folder_ / "merged" / name, folder_ / "cache/blobs/0a1b2c");
    const fs::path link = folder_ / "cache/snapshots/main" / name;
    fs::create_symlink("../../blobs/0a1b2c", link);
    expect_loads(link);
    expect_loads(link.parent_path());
    fs::create_directory_symlink("snapshots/main", folder_ / "cache/current");
    expect_loads(folder_ / "cache/current");
  }
  testing::internal::GetCapturedStderr();
}

TEST_F(DamagedCheckpoint, PathsThatAreNoCheckpoint) {
  EXPECT_SAYS(load_error(""), "empty");
  EXPECT_SAYS(load_error("/dev/null"), "/dev/null");
  EXPECT_SAYS(load_error("/dev/zero"), "/dev/zero");
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_SAYS(load_error(pipe), pipe.string());
  const fs::path link = folder_ / "link";
  fs::create_symlink("link", link);
  EXPECT_SAYS(load_error(link), link.string());
  EXPECT_SAYS(load_error(folder_ / "absent"), "absent");
  fs::create_directory(folder_ / "bare");
  EXPECT_SAYS(load_error(folder_ / "bare"), "is empty");
  EXPECT_SAYS(load_error(std::string("a\0b", 3)), "NUL");
  EXPECT_SAYS(load_error(folder_ / std::string(5'000, 'x')), "...");
  write_contents(folder_ / "notes.txt", "x");
  EXPECT_SAYS(load_error(folder_ / "notes.txt"), "notes.txt");
  EXPECT_SAYS(load_error(folder_ / "notes.txt/below"), "notes.txt");
  for (const char* name : {"model.safetensors", "pytorch_model.bin", kIndexName}) {
    fs::remove_all(folder_ / "odd");
    fs::create_directories(folder_ / "odd" / name);
    EXPECT_SAYS(load_error(folder_ / "odd"), "not a regular file");
    fs::remove_all(folder_ / "odd" / name);
    fs::create_symlink(name, folder_ / "odd" / name);
    load_error(folder_ / "odd");
  }
}

TEST_F(DamagedCheckpoint, AnIndexDeeperOrLargerThanAnyIs) {
  save("parts", {});
  const fs::path index = folder_ / "parts" / kIndexName;
  const std::string deep(100'000, '[');
  write_contents(index, "{\"format\": " + deep + std::string(deep.size(), ']') + "}");
  EXPECT_SAYS(load_error(folder_ / "parts"), "nested deeper");
  std::string twice = R"({"format": "oslo_checkpoint", "format": "oslo_checkpoint"})";
  write_contents(index, twice);
  EXPECT_SAYS(load_error(folder_ / "parts"), "duplicate key 'format'");
  write_contents(index, "{}");
  fs::resize_file(index, uint64_t{1} << 40);  // no byte of it is on the disk
  EXPECT_SAYS(load_error(folder_ / "parts"), "bytes");
}

TEST_F(DamagedCheckpoint, ConfigsThatNoReaderWouldTake) {
  nlohmann::json deep;
  for (int i = 0; i < 100'000; ++i) deep = nlohmann::json::array({std::move(deep)});
  nlohmann::json config;
  config["deep"] = std::move(deep);  // to copy it would recurse
  EXPECT_SAYS(error_of([&] { SaveOptions().config(std::move(config)); }), "nested deeper");
  EXPECT_SAYS(error_of([&] { SaveOptions().config({{"name", "\xff"}}); }), "UTF-8");
}

}  // namespace
}  // namespace oslo::checkpoint_test
