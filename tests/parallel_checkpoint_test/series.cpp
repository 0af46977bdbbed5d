// A folder of checkpoints, of which the latest is loaded and the oldest go.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "checkpoint/load_state.h"
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
