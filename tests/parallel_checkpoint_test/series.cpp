// A folder of checkpoints, of which the latest is loaded and the oldest go.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/directory/checkpoint_series.h"
#include "checkpoint/load/load_state.h"
#include "checkpoint/storage/host_digits.h"
#include "checkpoint/storage/staging_directory.h"
#include "tests/parallel_checkpoint_test/two_by_two.h"
#include "tests/support/files.h"

namespace oslo::checkpoint_test {
namespace {

using Names = std::set<std::string>;

class Series : public TwoByTwo {
 protected:
  void save_step(int64_t step, int keep = 0) {
    save(static_cast<int>(step), SaveOptions().step(step).keep_last(keep));
  }
  std::string latest() const { return test::contents(target_ + "/latest"); }
};

TEST_F(Series, TheLatestIsLoadedAndTheNewestStay) {
  save_step(1);
  save_step(2);
  save_step(30);
  EXPECT_EQ(names_in(target_), (Names{"latest", "step-000001", "step-000002", "step-000030"}));
  EXPECT_EQ(latest(), "step-000030\n");
  expect_seed(30);
  save_step(1234567, 2);
  EXPECT_EQ(names_in(target_), (Names{"latest", "step-000030", "step-1234567"}));
  expect_seed(1234567);
  const Model loaded = make_model(9);
  save(5, SaveOptions().step(1234568).keep_last(1).merge_checkpoints(true));
  load_state(*loaded, target_);
  expect_equal(whole_state(*loaded), whole_state(*make_model(5)));
  EXPECT_EQ(names_in(target_), (Names{"latest", "step-1234568"}));
}

TEST_F(Series, AStepThatIsSavedAgainReplacesItself) {
  save_step(7, 2);
  save(8, SaveOptions().step(7).keep_last(2));
  EXPECT_EQ(names_in(target_), (Names{"latest", "step-000007"}));
  expect_seed(8);
}

TEST_F(Series, TheFileLatestDecides) {
  save_step(10);
  save_step(20);
  test::write_contents(target_ + "/latest", "step-000010");
  expect_seed(10);
  // A run that goes on from there keeps what it writes, whatever is numbered higher.
  save_step(11, 1);
  EXPECT_EQ(names_in(target_), (Names{"latest", "step-000011"}));
  expect_seed(11);
}

TEST_F(Series, WithoutTheFileLatestTheHighestCompleteStepIsLoaded) {
  save_step(10);
  save_step(20);
  fs::remove(target_ + "/latest");
  expect_seed(20);
  test::write_contents(target_ + "/latest", "step-000030\n");  // that one was removed by hand
  expect_seed(20);
  fs::remove(target_ + "/step-000020/" + kIndexName);
  expect_seed(10);
  fs::remove_all(target_ + "/step-000010");
  EXPECT_SAYS(failed_load(), "none of its steps is complete");
}

TEST_F(Series, ARunThatWentBackKeepsItsOwnSteps) {
  for (const int step : {100, 200, 300}) save_step(step, 3);
  test::write_contents(target_ + "/latest", "step-000100\n");
  save_step(110, 3);
  // What it came by, and then what it left, the last saved first.
  EXPECT_EQ(names_in(target_), (Names{"latest", "step-000100", "step-000110", "step-000300"}));
  save_step(120, 3);
  EXPECT_EQ(names_in(target_), (Names{"latest", "step-000100", "step-000110", "step-000120"}));
  save_step(130, 3);
  EXPECT_EQ(names_in(target_), (Names{"latest", "step-000110", "step-000120", "step-000130"}));
  expect_seed(130);
}

TEST_F(Series, WithoutTheFileLatestTheLastSavedIsLoadedAndSaysSo) {
  for (const int step : {100, 200, 300}) save_step(step);
  test::write_contents(target_ + "/latest", "step-000100\n");
  for (const int step : {110, 120, 130}) save_step(step);
  fs::remove(target_ + "/latest");
  testing::internal::CaptureStderr();
  expect_seed(130);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "oslo: " + target_ + "/latest is gone: step-000130 is taken, which was saved last\n");
  test::write_contents(target_ + "/latest", "step-000140\n");
  testing::internal::CaptureStderr();
  expect_seed(130);
  EXPECT_SAYS(testing::internal::GetCapturedStderr(), "latest names step-000140, which is not");
  // A step that was saved again on the way is the new one.
  save_step(200);
  fs::remove(target_ + "/latest");
  testing::internal::CaptureStderr();
  expect_seed(200);
  testing::internal::GetCapturedStderr();
}

// As libraries before left them.
TEST_F(Series, StepsWithoutTheirPlaceAreTheOldest) {
  for (const int step : {100, 200, 300}) save_step(step);
  for (const char* step : {"100", "200", "300"}) {
    fs::remove(target_ + "/step-000" + step + "/" + kSeriesName);
  }
  fs::remove(target_ + "/latest");
  testing::internal::CaptureStderr();
  expect_seed(300);
  testing::internal::GetCapturedStderr();
  test::write_contents(target_ + "/latest", "step-000200\n");
  save_step(210, 3);
  EXPECT_EQ(names_in(target_), (Names{"latest", "step-000100", "step-000200", "step-000210"}));
}

TEST_F(Series, ADamagedPlaceIsRefusedBeforeAnythingIsWritten) {
  save_step(10);
  save_step(20);
  for (const char* text : {"{", "{}", R"({"number": -1})", R"({"number": 1, "after": 2})"}) {
    test::write_contents(target_ + "/step-000010/series.json", text);
    const std::string message = error_of([&] { save_step(30, 1); });
    EXPECT_SAYS(message, "step-000010/series.json is damaged");
    EXPECT_SAYS(message, "remove it, and its checkpoint counts as the oldest of the series");
    EXPECT_EQ(names_in(target_), (Names{"latest", "step-000010", "step-000020"}));
  }
  fs::remove(target_ + "/step-000010/series.json");
  save_step(30, 2);
  EXPECT_EQ(names_in(target_), (Names{"latest", "step-000020", "step-000030"}));
}

/// What a series should be, by the sentences of its documentation.
struct SeriesModel {
  struct Save {
    int64_t step;
    int before;  ///< the save that `latest` named then; -1: none
    bool there = true;
  };
  std::vector<Save> saves;
  int latest = -1;  ///< what the file names

  void save(int64_t step, int keep) {
    for (Save& old : saves) old.there = old.there && old.step != step;
    saves.push_back({step, latest});
    latest = static_cast<int>(saves.size()) - 1;
    if (keep == 0) return;
    std::vector<int> order;
    for (int at = latest; at >= 0 && saves[at].there; at = saves[at].before) order.push_back(at);
    for (int other = latest; other >= 0; --other) {
      if (std::find(order.begin(), order.end(), other) == order.end()) order.push_back(other);
    }
    std::erase_if(order, [&](int at) { return !saves[at].there; });
    for (size_t i = keep; i < order.size(); ++i) saves[order[i]].there = false;
  }
  int last() const {
    for (int at = static_cast<int>(saves.size()) - 1; at >= 0; --at) {
      if (saves[at].there) return at;
    }
    return -1;
  }
  /// The save that a load takes.
  int loaded() const { return latest >= 0 && saves[latest].there ? latest : last(); }
};

int histories() {
  constexpr int kFew = 8;
  const char* asked = std::getenv("OSLO_TEST_SERIES");
  return asked == nullptr ? kFew : std::atoi(asked);
}

// A run that goes on, goes back by hand, saves a step again, is killed between its steps' names,
// loses the file `latest`, and keeps now more and now fewer.
TEST_F(Series, RandomHistoriesAreThoseOfAModel) {
  const MPU alone(World::alone());
  const auto name = [](int64_t step) { return c10::str("step-000", step); };
  auto model = std::make_shared<torch::nn::Module>();
  const at::Tensor value = model->register_parameter("value", at::zeros({1}), false);
  testing::internal::CaptureStderr();  // lines on `latest`
  for (int seed = 0; seed < histories(); ++seed) {
    SCOPED_TRACE(seed);
    std::minstd_rand random(static_cast<unsigned>(seed + 1));
    const auto below = [&](int count) { return static_cast<int>(random() % unsigned(count)); };
    const std::string run = folder_ / c10::str("run", seed);
    const std::string file = run + "/latest";
    SeriesModel expected;
    int64_t step = 100;
    for (int turn = 0; turn < 14; ++turn) {
      const int kind = below(10);
      if (kind < 6 || expected.saves.empty()) {
        // Mostly onwards from what is loaded, at times another step, so that names come again.
        const int from = expected.loaded();
        if (from >= 0) step = expected.saves[from].step;
        step = below(5) == 0 ? 100 + below(300) : std::min<int64_t>(step + 10 + below(20), 990);
        const int keep = below(4);
        value.fill_(static_cast<double>(expected.saves.size()));
        const bool killed = below(6) == 0;  // when the folder had its name, and `latest` had not
        const std::string before =
            killed && fs::exists(file) ? test::contents(file) : std::string();
        save_parallelized(*model, alone, run,
                          SaveOptions().step(step).keep_last(killed ? 0 : keep));
        const int latest = expected.latest;
        expected.save(step, killed ? 0 : keep);
        if (killed) {
          expected.latest = latest;
          if (before.empty()) {
            fs::remove(file);
          } else {
            test::write_contents(file, before);
          }
        }
      } else if (kind < 8) {
        std::vector<int> there;
        for (size_t i = 0; i < expected.saves.size(); ++i) {
          if (expected.saves[i].there) there.push_back(static_cast<int>(i));
        }
        expected.latest = there[below(static_cast<int>(there.size()))];
        test::write_contents(file, name(expected.saves[expected.latest].step) + "\n");
      } else if (kind == 8) {
        fs::remove(file);
        expected.latest = -1;
      } else {
        // Somebody clears away what a load would take.
        const int gone = expected.loaded();
        if (std::ranges::count_if(expected.saves, &SeriesModel::Save::there) < 2) continue;
        fs::remove_all(run + "/" + name(expected.saves[gone].step));
        expected.saves[gone].there = false;
      }
      // The file names a step: one that was saved again under that name is what it names now.
      if (expected.latest >= 0) {
        const int64_t named = expected.saves[expected.latest].step;
        for (size_t i = 0; i < expected.saves.size(); ++i) {
          if (expected.saves[i].there && expected.saves[i].step == named) {
            expected.latest = static_cast<int>(i);
          }
        }
      }
      Names names;
      for (const SeriesModel::Save& save : expected.saves) {
        if (save.there) names.insert(name(save.step));
      }
      if (expected.latest >= 0) names.insert("latest");
      ASSERT_EQ(names_in(run), names) << "turn " << turn;
      load_state(*model, run);
      ASSERT_EQ(value.item<float>(), expected.loaded()) << "turn " << turn;
    }
    fs::remove_all(run);
  }
  testing::internal::GetCapturedStderr();
}

TEST_F(Series, WhatKilledSavesLeftGoesAndWhatNoSaveWroteStays) {
  save_step(10);
  const std::string dead = "/.step-000020.tmp-1-0";  // of this host: no other is named
  fs::create_directories(target_ + dead);
  test::write_contents(target_ + dead + "/model.safetensors", "half");
  fs::create_directories(target_ + "/step-000005");
  test::write_contents(target_ + "/step-000005/notes.txt", "mine");
  test::write_contents(target_ + "/notes.txt", "mine");
  save_step(30, 1);
  EXPECT_EQ(names_in(target_), (Names{"latest", "notes.txt", "step-000005", "step-000030"}));
}

// Killed between writing `latest` and giving it its name, and between naming a step and giving back
// its lock. Of other hosts, and of those who did not get the series' lock, nobody here can tell.
TEST_F(Series, WhatIsLeftOfADeadSaveGoesAtOnceWhereALockSaysThatItIsDead) {
  save_step(10);
  const std::string here = host_digits(), elsewhere = here == "01234567" ? "12345678" : "01234567";
  const auto latest_of = [](const std::string& host) { return ".latest.tmp-" + host + "-77"; };
  const auto leave = [&](const std::string& name, const std::string& bytes) {
    test::write_contents(target_ + "/" + name, bytes);
  };
  leave(latest_of(here), "step-000020\n");
  leave(latest_of(elsewhere), "step-000020\n");
  leave(".latest.tmp-78", "step-000020\n");
  leave(".step-000020.lock", here);
  leave(".step-000021.lock", "");
  leave(".step-000022.lock", elsewhere);
  save_step(30, 2);
  Names left = {"latest",         "step-000010",      "step-000030", latest_of(elsewhere),
                ".latest.tmp-78", ".step-000022.lock"};
  EXPECT_EQ(names_in(target_), left);
  const StagingDirectory lives(target_ + "/step-000040");
  remove_dead_lock(lives.final_path());
  left.merge(Names{".step-000040.lock", lives.path().filename()});
  EXPECT_EQ(names_in(target_), left);
}

// Each removes steps of the other, and names its own as the latest.
TEST_F(Series, TwoJobsMaySaveIntoOne) {
  constexpr int kSaves = 80;
  std::vector<std::string> errors(2);
  std::vector<std::thread> jobs;
  for (int job = 0; job < 2; ++job) {
    jobs.emplace_back([&, job] {
      const Model model = make_model(job);
      const MPU mpu(World::alone());
      try {
        for (int i = 0; i < kSaves; ++i) {
          save_parallelized(*model, mpu, target_, SaveOptions().step(2 * i + job).keep_last(2));
        }
      } catch (const Error& error) {
        errors[static_cast<size_t>(job)] = error.what();
      }
    });
  }
  for (std::thread& job : jobs) job.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(latest_checkpoint(target_).warning, "");
  EXPECT_EQ(names_in(target_).size(), 3u);
}

TEST_F(Series, LinksStayAndSoDoesWhatTheyLeadTo) {
  save(4);
  const std::string elsewhere = target_ + "-elsewhere";
  fs::rename(target_, elsewhere);
  save_step(10);
  fs::create_directory_symlink(elsewhere, target_ + "/step-000004");
  fs::create_directory_symlink("nowhere", target_ + "/step-000005");
  fs::create_directory_symlink("step-000006", target_ + "/step-000006");
  const Names there = names_in(elsewhere);
  save_step(30, 2);
  save_step(40, 2);
  EXPECT_EQ(names_in(elsewhere), there);
  EXPECT_EQ(names_in(target_), (Names{"latest", "step-000004", "step-000005", "step-000006",
                                      "step-000030", "step-000040"}));
  test::write_contents(target_ + "/latest", "step-000004");
  expect_seed(4);
  // Another library's way to name the latest, which is not read as if it were not there.
  fs::remove(target_ + "/latest");
  fs::create_directory_symlink("step-000030", target_ + "/latest");
  EXPECT_SAYS(failed_load(), "latest is no file");
  save_step(50);
  expect_seed(50);
}

TEST_F(Series, DamageIsRefusedByName) {
  save_step(10);
  save_step(20);
  const std::string file = target_ + "/step-000020/pytorch_model_tp_0_pp_0.safetensors";
  std::string text = test::contents(file);
  text.back() ^= 1;
  test::write_contents(file, text);
  EXPECT_SAYS(failed_load(), "step-000020/pytorch_model_tp_0_pp_0.safetensors is damaged");
  test::write_contents(target_ + "/latest", "../elsewhere");
  EXPECT_SAYS(failed_load(), "latest says '../elsewhere', which is no step's folder");
}

TEST_F(Series, MisuseIsRefused) {
  EXPECT_SAYS(error_of([&] { save(1, SaveOptions().keep_last(2)); }), "give the step, too");
  EXPECT_SAYS(error_of([&] { save(1, SaveOptions().step(-1)); }), "steps count from 0");
  EXPECT_SAYS(error_of([&] { SaveOptions().keep_last(-1); }), "keep_last(-1)");
  save(1);
  EXPECT_SAYS(error_of([&] { save_step(1); }), "it is a checkpoint itself");
  expect_seed(1);
}

}  // namespace
}  // namespace oslo::checkpoint_test
