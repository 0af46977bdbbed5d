// A run that goes on from a checkpoint makes the steps that it would have made: bit by bit in the
// layout that saved, to rounding in another.
#include "tests/resume_test/session.h"

namespace oslo::resume_test {
namespace {

constexpr int64_t kSaved = 3, kEnd = 6;

class Resume : public ::testing::TestWithParam<Layout> {
 protected:
  const TemporaryDirectory folder_;
  const std::string target_ = folder_ / "ckpt";
};

INSTANTIATE_TEST_SUITE_P(Layouts, Resume,
                         ::testing::Values(Layout{1, 1, 1}, Layout{2, 2, 1}, Layout{3, 1, 1},
                                           Layout{1, 2, 1}, Layout{2, 1, 2}, Layout{1, 1, 3}));

TEST_P(Resume, MakesTheStepsOfTheUninterruptedRunBitByBit) {
  for (const Kind kind : kKinds) {
    for (const bool first : {true, false}) {
      run_as_threads(GetParam().size(), [&](World world) {
        torch::set_num_threads(1);
        Session whole(world, GetParam(), {.kind = kind, .optimizer_first = first});
        const auto began = whole.train(0, kSaved);
        EXPECT_LT(began.back(), began.front());
        whole.parallel->save_parallelized(target_, whole.to_save().extra({{"step", kSaved}}));
        const auto expected = whole.train(kSaved, kEnd);

        // Other weights, other learning rates, and states that go.
        Session resumed(world, GetParam(),
                        {.kind = kind, .optimizer_first = !first, .seed = 9, .rate = 0.3});
        resumed.train(0, 1);
        nlohmann::json extra;
        resumed.parallel->from_parallelized(target_, resumed.to_load().extra(&extra));
        EXPECT_EQ(extra.at("step"), kSaved);
        EXPECT_EQ(resumed.train(kSaved, kEnd), expected);
        EXPECT_EQ(resumed.rates(), whole.rates());
        EXPECT_EQ(resumed.rates()[0], kRate / 4);  // halved behind the third and the fifth
        expect_same_bits(resumed.weights(), whole.weights());
      });
    }
  }
}

TEST_P(Resume, FromAFolderOfAnotherLayoutMakesThemToRounding) {
  for (const Kind kind : kKinds) {
    // Merged folders and parts in turn.
    const bool merge = kind == Kind::adam || kind == Kind::adagrad;
    const Layout saver = merge ? Layout{2, 2, 1} : Layout{2, 1, 2};
    run_as_threads(saver.size(), [&](World world) {
      torch::set_num_threads(1);
      Session before(world, saver, {.kind = kind});
      before.train(0, kSaved);
      before.parallel->save_parallelized(target_, before.to_save().merge_checkpoints(merge));
    });
    OneDevice expected(kind);
    expected.train(kEnd);
    run_as_threads(GetParam().size(), [&](World world) {
      torch::set_num_threads(1);
      Session resumed(world, GetParam(), {.kind = kind, .seed = 9});
      resumed.parallel->from_parallelized(target_, resumed.to_load());
      resumed.train(kSaved, kEnd);
      expect_close(resumed.weights(), expected.weights());
    });
  }
}

TEST_P(Resume, OfAnOptimizerThatHasNotSteppedForgetsTheStatesThatWereThere) {
  for (const Kind kind : kKinds) {
    run_as_threads(GetParam().size(), [&](World world) {
      torch::set_num_threads(1);
      Session whole(world, GetParam(), {.kind = kind});
      whole.parallel->save_parallelized(target_, whole.to_save());
      const auto expected = whole.train(0, 2);
      Session resumed(world, GetParam(), {.kind = kind, .seed = 9});
      resumed.train(0, 2);
      resumed.parallel->from_parallelized(target_, resumed.to_load());
      EXPECT_EQ(resumed.train(0, 2), expected);
      expect_same_bits(resumed.weights(), whole.weights());
    });
  }
}

TEST_P(Resume, WithoutTheOptimizerLeavesItAlone) {
  run_as_threads(GetParam().size(), [&](World world) {
    torch::set_num_threads(1);
    Session whole(world, GetParam(), {});
    whole.train(0, 2);
    whole.parallel->save_parallelized(target_, whole.to_save());
    Session other(world, GetParam(), {.seed = 9, .rate = 0.3});
    other.train(0, 1);
    const auto states = other.optimizer->state().size();
    other.parallel->from_parallelized(target_);
    expect_same_bits(other.weights(), whole.weights());
    EXPECT_EQ(other.rates()[0], 0.3);
    EXPECT_EQ(other.optimizer->state().size(), states);
  });
}

}  // namespace
}  // namespace oslo::resume_test
