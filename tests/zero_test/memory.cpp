// Bytes that LibTorch's allocator has handed out for states, of all ranks together.
#include "tests/support/counted_memory.h"
#include "tests/zero_test/net.h"

namespace oslo::zero_test {
namespace {

class ZeroMemory : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ZeroMemory, ::testing::Values(2, 4));

TEST_P(ZeroMemory, StatesAreThereOnce) {
  const int ranks = GetParam();
  const auto bytes_of_states = [&](bool shared) {
    test::CountedMemory memory;
    int64_t before = 0, after = 0;
    run_as_threads(ranks, [&](World world) {
      at::set_num_threads(1);
      torch::nn::Sequential net = test::make_seeded(1, [] {
        return torch::nn::Sequential(torch::nn::Linear(31, 17), torch::nn::Linear(17, 5));
      });
      ParallelModel parallel = initialize(net, zero_config(), in(world));
      std::unique_ptr<torch::optim::Optimizer> optimizer;
      if (shared) {
        optimizer = std::make_unique<ZeroOptimizer<AdamW>>(parallel, torch::optim::AdamWOptions(1));
      } else {
        optimizer = std::make_unique<AdamW>(net->parameters(), torch::optim::AdamWOptions(1));
      }
      net->forward(torch::ones({3, 31})).sum().backward();
      world.barrier();
      if (world.rank() == 0) before = memory.bytes();
      world.barrier();
      optimizer->step();
      world.barrier();
      if (world.rank() == 0) after = memory.bytes();
      world.barrier();
    });
    return after - before;
  };
  const int64_t elements = 31 * 17 + 17 + 17 * 5 + 5;
  EXPECT_EQ(bytes_of_states(false), ranks * 2 * 4 * elements);
  EXPECT_EQ(bytes_of_states(true), 2 * 4 * elements);
}

}  // namespace
}  // namespace oslo::zero_test
