// Threads that each work with a model of their own: what their ranks decide does not meet that of
// the other model, in whatever order they come.
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "tests/parallel_checkpoint_test/two_by_two.h"

namespace oslo::checkpoint_test {
namespace {

/// Two ranks, on each of which a thread works with model `a` and another one with `b`. Rank 0 has
/// begun with a, and rank 1 with b, before either begins with the other.
class Crosswise {
 public:
  /// What one rank does with one of the two models; what it throws is returned, by rank and model.
  using Work = std::function<void(const MPU& mpu, int rank, int model)>;
  using Errors = std::vector<std::vector<std::string>>;

  Errors run(const Work& work) {
    Errors errors(2, std::vector<std::string>(2));
    std::promise<void> made[2], begun[2];
    std::shared_future<void> all_made[2] = {made[0].get_future(), made[1].get_future()};
    std::shared_future<void> all_begun[2] = {begun[0].get_future(), begun[1].get_future()};
    const auto rank_of = [&](int rank) {
      const World world = World::over_store(store_, rank, 2);
      const MpuOptions options = MpuOptions().tensor_parallel_size(2);
      const MPU mpus[] = {MPU(world, options), MPU(world, options)};
      made[rank].set_value();
      for (const auto& one : all_made) one.wait();
      if (rank == 1) all_begun[0].wait();
      std::vector<std::future<void>> threads;
      for (const int model : {rank, 1 - rank}) {
        const int64_t keys = store_->getNumKeys();
        threads.push_back(std::async(std::launch::async, [&, model] {
          try {
            work(mpus[model], rank, model);
          } catch (const std::exception& error) {
            errors[rank][model] = error.what();
          }
        }));
        if (model != rank) break;
        const auto over = [&] {
          return threads.back().wait_for(std::chrono::seconds(0)) == std::future_status::ready;
        };
        while (store_->getNumKeys() == keys && !over()) std::this_thread::yield();
        begun[rank].set_value();
        all_begun[1 - rank].wait();
      }
      for (std::future<void>& thread : threads) thread.get();
    };
    std::thread other(rank_of, 1);
    rank_of(0);
    other.join();
    return errors;
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_ = c10::make_intrusive<c10d::HashStore>();
};

const Crosswise::Errors kNone(2, std::vector<std::string>(2));

TEST(TwoThreads, DecisionsOfTwoMpusMeetTheirOwn) {
  std::vector<std::string> texts[2][2];
  const auto errors = Crosswise().run([&](const MPU& mpu, int rank, int model) {
    texts[rank][model] = mpu.world().exchange("test", c10::str("model ", model, " of ", rank));
  });
  EXPECT_EQ(errors, kNone);
  for (const int model : {0, 1}) {
    const std::vector<std::string> own{c10::str("model ", model, " of 0"),
                                       c10::str("model ", model, " of 1")};
    for (const int rank : {0, 1}) EXPECT_EQ(texts[rank][model], own) << rank;
  }
}

TEST(TwoThreads, EachSavesItsOwnModel) {
  const TemporaryDirectory folder;
  const auto target = [&](int model) { return folder / c10::str("model_", model); };
  const auto errors = Crosswise().run([&](const MPU& mpu, int, int model) {
    save_parallelized(*make_parallel(3 + model, mpu), mpu, target(model));
  });
  EXPECT_EQ(errors, kNone);
  run_as_threads(2, [&](World world) {
    const MPU mpu(world, MpuOptions().tensor_parallel_size(2));
    for (const int model : {0, 1}) {
      const Model loaded = make_parallel(9, mpu);
      load_parallelized(*loaded, mpu, target(model));
      expect_equal(whole_state(*loaded), whole_state(*make_model(3 + model)));
    }
  });
}

// A rank that fails tells so in all channels: nobody waits for it until the time limit.
TEST(TwoThreads, ARankThatFailsEndsDecisionsInAllChannels) {
  const std::string error = error_of([] {
    run_as_threads(2, [](World world) {
      const MPU first(world), second(world);
      if (world.rank() == 1) fail("rank 1 has failed");
      second.world().barrier();
    });
  });
  EXPECT_SAYS(error, "rank 1: rank 1 has failed");
}

}  // namespace
}  // namespace oslo::checkpoint_test
