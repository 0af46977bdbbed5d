// A folder that is read while another job saves into it: all that a load takes is of one save, and
// none is refused because of the other.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/directory/checkpoint_folder.h"
#include "checkpoint/directory/read_together.h"
#include "checkpoint/formats/safetensors.h"
#include "checkpoint/pretrained/pretrained_folder.h"
#include "checkpoint/pretrained/weight_index.h"
#include "checkpoint/storage/file_hash.h"
#include "checkpoint/storage/hash.h"
#include "checkpoint/storage/open_folder.h"
#include "checkpoint/storage/staging_directory.h"
#include "tests/parallel_checkpoint_test/two_by_two.h"
#include "tests/support/files.h"

namespace oslo::checkpoint_test {
namespace {

class BesideSaves : public TwoByTwo {
 protected:
  void save_as(int seed, SaveOptions options = {}) { save(seed, options.extra({{"seed", seed}})); }
  static void expect_model(const CheckpointFolder& folder, int seed) {
    folder.verify();
    const Model model = make_model(9);
    const ModelState state(*model);
    copy_into(state, read_state(state, folder));
    expect_equal(whole_state(*model), whole_state(*make_model(seed)));
    EXPECT_EQ(folder.read_extra().at("seed"), seed);
  }
};

TEST_F(BesideSaves, AnOpenCheckpointIsTheOneThatWasOpened) {
  for (const bool merged : {false, true}) {
    for (const char* format : {"safetensors", "bin"}) {
      SCOPED_TRACE(c10::str(merged ? "merged " : "parts ", format));
      const SaveOptions options = SaveOptions().merge_checkpoints(merged).format(format);
      save_as(1, options);
      const CheckpointFolder folder(target_);
      EXPECT_TRUE(folder.in_place());
      save_as(2, options);
      EXPECT_FALSE(folder.in_place());
      expect_model(folder, 1);
      expect_model(CheckpointFolder(target_), 2);
      fs::remove_all(target_);
    }
  }
}

TEST_F(BesideSaves, AStepOfASeriesThatIsRemoved) {
  const auto step = [](int number) { return SaveOptions().step(number).keep_last(1); };
  save_as(1, step(1));
  const CheckpointFolder folder(target_);
  save_as(2, step(2));
  EXPECT_FALSE(fs::exists(folder.path()));
  expect_model(folder, 1);
  expect_model(CheckpointFolder(target_), 2);
}

TEST_F(BesideSaves, AFileWithItsIndexAndOneWithout) {
  save_as(1, SaveOptions().merge_checkpoints(true));
  const fs::path file = fs::path(target_) / "model.safetensors";
  const CheckpointFolder listed(file);
  save_as(2, SaveOptions().merge_checkpoints(true));
  listed.verify();
  EXPECT_TRUE(at::equal(listed.read("scale", nullptr), make_model(1)->scale));
  fs::remove(index_);
  const CheckpointFolder bare(file);
  EXPECT_TRUE(bare.in_place());
  write_safetensors(target_ + "/new", whole_state(*make_model(3)));
  fs::rename(target_ + "/new", file);
  EXPECT_FALSE(bare.in_place());
  EXPECT_TRUE(at::equal(bare.read("scale", nullptr), make_model(2)->scale));
}

// Between the index and the files that it lists.
TEST_F(BesideSaves, ASaveWhileAFolderIsOpenedStartsTheReaderOver) {
  const std::string name = "pytorch_model_tp_1_pp_0.safetensors";
  save_as(1);
  std::optional<OpenFolder> folder;
  std::vector<CheckpointIndex> read;
  const auto open = [&](const std::function<void(int)>& between) {
    read.clear();
    read_in_place(
        target_,
        [&] {
          folder.reset();
          folder.emplace(target_);
          folder->hold(kIndexName);
          read.push_back(CheckpointIndex::read(folder->open(kIndexName)));
          between(static_cast<int>(read.size()));
          folder->hold(name);
        },
        [&] { return folder.has_value(); }, [&] { return folder->in_place(); });
  };
  open([&](int time) {
    if (time < 4) save_as(1 + time);
  });
  EXPECT_EQ(read.size(), 4u);
  EXPECT_EQ(hash_file(folder->open(name)), read.back().files.at(name).hash);
  EXPECT_EQ(CheckpointFolder(target_).read_extra().at("seed"), 4);
  // Taken away and put back, as on file systems that cannot swap names.
  open([&](int time) {
    if (time > 1) return;
    fs::rename(target_, target_ + "-aside");
    save_as(5);
  });
  EXPECT_EQ(read.size(), 2u);
  // What does not go with a save is said at once.
  read.clear();
  EXPECT_SAYS(error_of([&] { open([](int) { fail("of its own"); }); }), "of its own");
  EXPECT_EQ(read.size(), 1u);
  // And nobody waits for ever.
  EXPECT_SAYS(error_of([&] {
                open([&](int) {
                  fs::last_write_time(index_,
                                      fs::last_write_time(index_) + std::chrono::seconds(1));
                });
              }),
              c10::str("the checkpoint ", target_,
                       " was replaced 100 times while it was read: another job saves there "
                       "without a pause; load it when that has ended"));
  EXPECT_EQ(read.size(), 100u);
}

// More files than a reader holds open, or files that another host has removed.
TEST_F(BesideSaves, AFileThatIsNotHeldGoesWithItsFolder) {
  save_as(1);
  OpenFolder folder(target_);
  folder.hold(kIndexName);
  EXPECT_NO_THROW(folder.open(kExtraName));
  EXPECT_TRUE(folder.in_place());
  save_as(2);
  EXPECT_NO_THROW(CheckpointIndex::read(folder.open(kIndexName)));
  EXPECT_FALSE(folder.has(kExtraName));
  EXPECT_SAYS(error_of([&] { folder.open(kExtraName); }), "No such file");
  EXPECT_FALSE(folder.in_place());
}

TEST_F(BesideSaves, ALoadThatFailsBesideASaveStartsOver) {
  save_as(1);
  std::optional<CheckpointFolder> folder;
  int read = 0;
  const auto open = [&] {
    folder.emplace(target_);
    return folder->identity();
  };
  const auto in_place = [&] { return folder->in_place(); };
  const auto as_opened = [&] { return folder->is_as_opened(); };
  const auto replaced_while_read = [&] {
    if (++read > 2) return;
    save_as(1 + read);
    fail("as of a file that has gone");
  };
  EXPECT_NO_THROW(read_alone(target_, {open, nullptr, in_place, replaced_while_read, as_opened}));
  EXPECT_EQ(read, 3);
  expect_model(*folder, 3);
  const auto damaged = [] { fail("is damaged"); };
  EXPECT_EQ(error_of([&] {
              read_alone(target_, {open, nullptr, in_place, damaged, as_opened});
            }),
            "is damaged");
}

/// A folder of Hugging Face's whose values are all `value`, in some files, saved as
/// `save_pretrained` saves.
void save_pretrained_like(const fs::path& folder, float value, int files) {
  StagingDirectory staging(folder);
  test::write_contents(staging.path() / kConfigName, R"({"model_type": "gpt2"})");
  WeightIndex index;
  for (int i = 0; i < files; ++i) {
    const std::string name =
        files == 1 ? "model.safetensors" : c10::str("model-", i, ".safetensors");
    StateDict state;
    state.insert(c10::str("weight", i), at::full({7}, value));
    write_safetensors(staging.path() / name, state);
    index.files[c10::str("weight", i)] = name;
  }
  if (files > 1) index.write(staging.path() / "model.safetensors.index.json");
  staging.commit();
}

TEST_F(BesideSaves, AFolderOfHuggingFaces) {
  for (const int files : {1, 3}) {
    for (const int then : {1, 2, 3}) {
      save_pretrained_like(target_, 1, files);
      const PretrainedFolder folder(target_);
      save_pretrained_like(target_, 2, then);
      EXPECT_FALSE(folder.in_place());
      for (const auto& [name, _] : folder.tensors()) {
        EXPECT_TRUE(at::equal(folder.read(name, Region(std::vector<int64_t>{7}), false),
                              at::full({7}, 1.0f)))
            << name;
      }
      EXPECT_EQ(folder.tensors().size(), static_cast<size_t>(files));
    }
  }
}

/// Two ranks read the folder; `between` runs on rank 1 before its n-th opening, when rank 0 has
/// opened as often.
class TwoRanks {
 public:
  struct Seen {
    int opened = 0, read = 0;
    std::string error;
  };
  std::vector<Seen> run(const std::string& path, const std::function<void(int)>& between,
                        const std::function<void(int rank, int time)>& reading = {}) {
    std::vector<Seen> seen(2);
    std::vector<std::promise<void>> opened(kMostReadings + 1);
    run_as_threads(2, [&](World world) {
      Seen& mine = seen[static_cast<size_t>(world.rank())];
      std::optional<CheckpointFolder> folder;
      const auto open = [&] {
        const int time = mine.opened++;
        if (world.rank() == 1) {
          opened[static_cast<size_t>(time)].get_future().wait();
          between(time);
        }
        folder.emplace(path);
        if (world.rank() == 0) opened[static_cast<size_t>(time)].set_value();
        return folder->identity();
      };
      const auto read = [&] {
        ++mine.read;
        if (reading) reading(world.rank(), mine.read);
        folder->verify();
      };
      try {
        read_together(
            world, "test", path,
            {open, [&] { return !folder->hashed().empty(); }, [&] { return folder->in_place(); },
             read, [&] { return folder->is_as_opened(); }});
      } catch (const Error& error) {
        mine.error = error.what();
      }
      if (mine.error.empty()) last[static_cast<size_t>(world.rank())] = folder->identity();
    });
    return seen;
  }
  std::vector<std::string> last = std::vector<std::string>(2);
};

TEST_F(BesideSaves, RanksThatOpenedDifferentSavesStartOver) {
  save_as(1);
  TwoRanks ranks;
  const auto seen = ranks.run(target_, [&](int time) {
    if (time < 3) save_as(2 + time);
  });
  for (const auto& rank : seen) {
    EXPECT_EQ(rank.error, "");
    EXPECT_EQ(rank.opened, 4);
    EXPECT_EQ(rank.read, 1);
  }
  EXPECT_EQ(ranks.last[0], ranks.last[1]);
  EXPECT_EQ(CheckpointFolder(target_).identity(), ranks.last[0]);
}

// Files of which only the index differs: its optimizer's learning rates, its scheduler's steps.
TEST_F(BesideSaves, TheIndexTellsSavesOfEqualFilesApart) {
  save_as(1);
  const std::string before = CheckpointFolder(target_).identity();
  nlohmann::json index = nlohmann::json::parse(test::contents(index_));
  index.erase("checksum");
  index["scheduler"] = {{"steps", 7}};
  index["checksum"] = sha256(index.dump());
  test::write_contents(index_, index.dump());
  EXPECT_NE(CheckpointFolder(target_).identity(), before);
}

// Another program writes into a file whose hash has been looked at (cp, rsync --inplace, a Python
// that saves into the folder): what has been read of it before goes with none of what comes behind.
TEST_F(BesideSaves, AFileThatIsWrittenIntoWhileItIsReadIsReadAgain) {
  const std::string file = target_ + "/model.safetensors";
  for (const bool listed : {true, false}) {
    SCOPED_TRACE(listed ? "with its index" : "without");
    save_as(1, SaveOptions().merge_checkpoints(true).format("safetensors"));
    const std::string before = test::contents(file), index = test::contents(index_);
    save_as(2, SaveOptions().merge_checkpoints(true).format("safetensors"));
    const std::string after = test::contents(file), next_index = test::contents(index_);
    const auto write_in_place = [&](const std::string& contents, const std::string& its_index) {
      test::write_contents(file, contents);
      if (listed) test::write_contents(index_, its_index);
    };
    fs::remove(target_ + "/extra.json");
    if (!listed) fs::remove(index_);
    write_in_place(before, index);
    std::vector<StateDict> read(2);
    std::vector<int> times(2);
    run_as_threads(2, [&](World world) {
      const size_t rank = static_cast<size_t>(world.rank());
      const ModelState state(*make_model(9));
      std::optional<CheckpointFolder> folder;
      read_together(world, "test", target_,
                    {[&] {
                       folder.emplace(target_);
                       return folder->identity();
                     },
                     [&] { return !folder->hashed().empty(); }, [&] { return folder->in_place(); },
                     [&] {
                       folder->verify();
                       if (times[rank]++ == 0 && rank == 1) write_in_place(after, next_index);
                       const Model model = make_model(9);
                       copy_into(ModelState(*model), read_state(ModelState(*model), *folder));
                       read[rank] = whole_state(*model);
                     },
                     [&] { return folder->is_as_opened(); }});
    });
    for (const StateDict& state : read) expect_equal(state, whole_state(*make_model(2)));
    EXPECT_GT(times[1], 1);
    fs::remove_all(target_);
  }
}

// It ends before what is read of it: an error, where memory mapped from it would end the process.
TEST_F(BesideSaves, AFileThatIsCutWhileItIsRead) {
  save_as(1, SaveOptions().merge_checkpoints(true).format("safetensors"));
  const CheckpointFolder folder(target_);
  folder.verify();
  fs::resize_file(target_ + "/model.safetensors", 64);
  EXPECT_SAYS(error_of([&] { folder.read("qkv.weight", nullptr); }), "bytes too early");
  EXPECT_FALSE(folder.is_as_opened());
  save_pretrained_like(target_ + "-hf", 1, 1);
  const PretrainedFolder pretrained(target_ + "-hf");
  fs::resize_file(target_ + "-hf/model.safetensors", 64);
  EXPECT_SAYS(error_of([&] { pretrained.read("weight0", Region(std::vector<int64_t>{7}), false); }),
              "bytes too early");
}

// Without hashes nothing but the file itself tells one save from another.
TEST_F(BesideSaves, RanksThatOpenedDifferentFilesStartOver) {
  fs::create_directory(target_);
  const auto write = [&](int seed) {
    write_safetensors(target_ + "/new", whole_state(*make_model(seed)));
    fs::rename(target_ + "/new", target_ + "/model.safetensors");
  };
  write(1);
  TwoRanks ranks;
  const auto seen = ranks.run(target_, [&](int time) {
    if (time < 2) write(2 + time);
  });
  for (const auto& rank : seen) {
    EXPECT_EQ(rank.error, "");
    EXPECT_EQ(rank.opened, 3);
  }
}

TEST_F(BesideSaves, WhatARankCouldNotReadAnyMoreIsReadAgain) {
  save_as(1);
  TwoRanks ranks;
  const auto seen = ranks.run(
      target_, [](int) {},
      [&](int rank, int time) {
        if (rank == 0 || time > 1) return;
        save_as(2);
        fail("as of a file that has gone");
      });
  for (const auto& rank : seen) {
    EXPECT_EQ(rank.error, "");
    EXPECT_EQ(rank.read, 2);
  }
  const auto damaged = ranks.run(
      target_, [](int) {}, [](int rank, int) { OSLO_CHECK(rank == 0, "is damaged"); });
  for (const auto& rank : damaged) {
    EXPECT_EQ(rank.error, "rank 1: is damaged");
    EXPECT_EQ(rank.read, 1);
  }
}

TEST_F(BesideSaves, RanksThatSeeDifferentFoldersAreTold) {
  save_as(1);
  fs::copy(target_, target_ + "-of-0", fs::copy_options::recursive);
  save_as(2);
  int opened = 0;
  std::vector<std::string> errors(2);
  run_as_threads(2, [&](World world) {
    const std::string own = world.rank() == 0 ? target_ + "-of-0" : target_;
    std::optional<CheckpointFolder> folder;
    errors[static_cast<size_t>(world.rank())] = error_of([&] {
      read_together(world, "test", "/data/ckpt",
                    {[&] {
                       opened += world.rank();
                       folder.emplace(own);
                       return folder->identity();
                     },
                     [] { return true; }, [&] { return folder->in_place(); }, [] {},
                     [&] { return folder->is_as_opened(); }});
    });
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error,
              "rank 1 and rank 0 see different checkpoints at /data/ckpt: one of them was replaced "
              "or not copied to every machine");
  }
  EXPECT_EQ(opened, 2);
}

}  // namespace
}  // namespace oslo::checkpoint_test
