// Ranks that do not gather the same weights in the same order at stage 3, though as much of them.
#include "tests/zero_test/sharded_net.h"

namespace oslo::zero_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string error_of_two_ranks(const std::function<void(Mlp& net, int rank)>& step,
                               const std::string& more = "") {
  return error_of([&] {
    run_as_threads(2, [&](World world) {
      Mlp net = make_mlp();
      ParallelModel parallel =
          initialize(net, sharded_config(R"(, "copies_per_host": 0)" + more), in(world));
      step(net, world.rank());
    });
  });
}

TEST(ShardedWays, OneOfTwoLikeLayersIsNotTheOther) {
  const std::string error = error_of_two_ranks([](Mlp& net, int rank) {
    net->order = {0, rank + 1};
    const torch::NoGradGuard no_grad;
    net->forward(rows_of(0, rank));
  });
  EXPECT_THAT(error, AllOf(HasSubstr("blocks.1"), HasSubstr("blocks.2")));
}

/// Both gather all layers in forward, and none in backward, which reaches one of the first two.
TEST(ShardedWays, OneGradientIsNotTheOther) {
  const auto step = [](Mlp& net, int rank) {
    const auto layer = [&](int i, const Tensor& x) {
      return net->blocks[i]->as<torch::nn::Linear>()->forward(x);
    };
    Tensor x = layer(0, rows_of(0, rank));
    x = rank == 0 ? layer(1, x.detach()) : layer(1, x).detach() + x;
    (layer(2, x) + net->bias).sum().backward();
  };
  const std::string error = error_of_two_ranks(step, R"(, "reshard": false)");
  EXPECT_THAT(error, HasSubstr("averages the gradients of blocks."));
}

}  // namespace
}  // namespace oslo::zero_test
