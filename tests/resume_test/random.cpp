// Random generators go on from where they were.
#include "checkpoint/resume/random_record.h"

#include "mpu/grid/random_states.h"
#include "tests/resume_test/session.h"

namespace oslo::resume_test {
namespace {

class RandomResume : public ::testing::Test {
 protected:
  const TemporaryDirectory folder_;
  const std::string target_ = folder_ / "ckpt";
};

std::vector<Tensor> drawn(const MPU& mpu) {
  return {torch::rand({3}, mpu.random().replicated()), torch::rand({3}, mpu.random().sharded())};
}

TEST_F(RandomResume, DropoutDrawsWhatTheUninterruptedRunDrew) {
  const std::lock_guard<std::mutex> lock(test::random_mutex());
  Net model(0.4), other(0.4);
  model->train();
  const MPU mpu(World::alone());
  torch::manual_seed(3);
  model->forward(tokens_of(0));
  save_parallelized(*model, mpu, target_, SaveOptions().random_states(true));
  const Tensor expected = model->forward(tokens_of(1));
  EXPECT_FALSE(torch::equal(model->forward(tokens_of(1)), expected));
  load_parallelized(*other, mpu, target_, LoadOptions().random_states(true));
  EXPECT_TRUE(torch::equal(other->forward(tokens_of(1)), expected));
  // Nobody asked: they go on.
  load_parallelized(*other, mpu, target_);
  EXPECT_FALSE(torch::equal(other->forward(tokens_of(1)), expected));
}

TEST_F(RandomResume, EachRanksStreamsAreItsOwnInTheSameGrid) {
  run_as_threads(4, [&](World world) {
    Net model = test::make_seeded(7, [] { return Net(); });
    const MPU mpu(world, MpuOptions().tensor_parallel_size(2).seed(5));
    drawn(mpu);
    save_parallelized(*model, mpu, target_, SaveOptions().random_states(true));
    const auto expected = drawn(mpu);
    const MPU again(world, MpuOptions().tensor_parallel_size(2).seed(6));
    load_parallelized(*model, again, target_, LoadOptions().random_states(true));
    expect_same_bits(drawn(again), expected);
  });
}

TEST_F(RandomResume, InAnotherGridReplicasKeepTheirStreams) {
  std::vector<Tensor> replicated(2);
  run_as_threads(4, [&](World world) {
    Net model = test::make_seeded(7, [] { return Net(); });
    const MPU mpu(world, MpuOptions().tensor_parallel_size(2).seed(5));
    drawn(mpu);
    save_parallelized(*model, mpu, target_, SaveOptions().random_states(true));
    if (mpu.get_tensor_parallel_rank() == 0) {
      replicated[mpu.get_data_parallel_rank()] = drawn(mpu)[0];
    }
  });
  EXPECT_FALSE(torch::equal(replicated[0], replicated[1]));
  run_as_threads(2, [&](World world) {
    Net model = test::make_seeded(7, [] { return Net(); });
    const MPU mpu(world, MpuOptions().seed(6)), fresh(world, MpuOptions().seed(6));
    load_parallelized(*model, mpu, target_, LoadOptions().random_states(true));
    const auto now = drawn(mpu);
    EXPECT_TRUE(torch::equal(now[0], replicated[world.rank()]));
    EXPECT_TRUE(torch::equal(now[1], drawn(fresh)[1]));
  });
}

TEST_F(RandomResume, WithoutThemIsRefused) {
  Net model;
  const MPU mpu(World::alone());
  save_parallelized(*model, mpu, target_);
  const std::string message =
      error_of([&] { load_parallelized(*model, mpu, target_, LoadOptions().random_states(true)); });
  EXPECT_SAYS(message, "has no random_states.safetensors");
}

}  // namespace
}  // namespace oslo::resume_test
