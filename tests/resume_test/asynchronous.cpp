// A save that is written while the model is trained on holds what the model was when it began.
#include "checkpoint/save/pending_save.h"

#include <set>

#include "tests/resume_test/session.h"
#include "tests/support/errors_of.h"

namespace oslo::resume_test {
namespace {

class AsynchronousSave : public ::testing::TestWithParam<bool> {
 protected:
  SaveOptions options_of(const Session& session) const {
    return session.to_save().merge_checkpoints(GetParam());
  }
  void expect_loads(const std::vector<Tensor>& weights) {
    run_as_threads(kLayout.size(), [&](World world) {
      Session loaded(world, kLayout, {.seed = 9});
      loaded.parallel->from_parallelized(target_, loaded.to_load());
      expect_same_bits(loaded.weights(), weights);
    });
  }

  static constexpr Layout kLayout = {2, 2, 1};
  const TemporaryDirectory folder_;
  const std::string target_ = folder_ / "ckpt";
};

INSTANTIATE_TEST_SUITE_P(Merged, AsynchronousSave, ::testing::Bool());

TEST_P(AsynchronousSave, HoldsTheModelOfItsBeginning) {
  std::vector<Tensor> weights;
  run_as_threads(kLayout.size(), [&](World world) {
    Session session(world, kLayout, {});
    for (int64_t round = 0; round < 3; ++round) {
      session.train(round, round + 1);
      const auto before = session.weights();
      const auto saving = session.parallel->save_async(target_, options_of(session));
      session.train(round + 1, round + 3);
      saving->wait();
      EXPECT_TRUE(saving->done());
      saving->wait();  // as often as one likes

      Session loaded(world, kLayout, {.seed = 9});
      loaded.parallel->from_parallelized(target_, loaded.to_load());
      expect_same_bits(loaded.weights(), before);
      loaded.train(round + 1, round + 3);
      expect_same_bits(loaded.weights(), session.weights());
    }
  });
}

TEST_P(AsynchronousSave, IsWaitedForByTheNextSaveAndByALoad) {
  run_as_threads(kLayout.size(), [&](World world) {
    Session session(world, kLayout, {});
    std::vector<Tensor> last;
    for (int64_t round = 0; round < 4; ++round) {
      session.train(round, round + 1);
      last = session.weights();
      session.parallel->save_async(target_, options_of(session));
    }
    session.train(4, 6);
    session.parallel->from_parallelized(target_, session.to_load());
    expect_same_bits(session.weights(), last);
    session.train(4, 5);
    session.parallel->save_async(target_, options_of(session));
    session.parallel->save_parallelized(target_, options_of(session));
  });
}

TEST_P(AsynchronousSave, IsFinishedByTheEndOfTheModel) {
  std::vector<Tensor> weights;
  run_as_threads(kLayout.size(), [&](World world) {
    Session session(world, kLayout, {});
    session.train(0, 1);
    const auto own = session.weights();
    if (world.rank() == 0) weights = own;
    session.parallel->save_async(target_, options_of(session));
  });
  expect_loads(weights);
}

/// A safetensors file has no such dtype, which the thread finds out.
void add_what_cannot_be_written(Session& session) {
  session.model->register_buffer("phase", torch::zeros({2}, torch::kComplexDouble));
}

TEST_P(AsynchronousSave, ThrowsOnEveryRankWhatFailedOnOne) {
  const auto errors = test::errors_of(kLayout.size(), [&](World world) {
    Session session(world, kLayout, {});
    add_what_cannot_be_written(session);
    const auto saving = session.parallel->save_async(target_, options_of(session));
    session.train(0, 1);
    const std::string message = error_of([&] { saving->wait(); });
    // Said once: the model saves on where it can.
    saving->wait();
    session.parallel->save_async(target_, options_of(session).format("bin"))->wait();
    session.parallel->save_async(target_, options_of(session));
    throw Error(message + " | " + error_of([&] {
                  session.parallel->save_parallelized(target_, options_of(session).format("bin"));
                }));
  });
  EXPECT_EQ(std::set<std::string>(errors.begin(), errors.end()).size(), 1u);
  const std::string said = "save_async: writing: rank 0: cannot write 'phase' to ";
  EXPECT_SAYS(errors[0], said);
  EXPECT_SAYS(errors[0], " | " + said);
  // Both failed saves left the one between them.
  EXPECT_TRUE(std::filesystem::exists(target_ + "/oslo_checkpoint.json"));
  int entries = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
    ++entries;
  }
  EXPECT_EQ(entries, 1);
}

}  // namespace
}  // namespace oslo::resume_test
