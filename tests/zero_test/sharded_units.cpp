// Stage 3 of a model without a repeated stack: its layers are of many sizes, and a tied one is used
// at both ends.
#include "tests/zero_test/sharded_net.h"

namespace oslo::zero_test {
namespace {

struct HeadImpl : torch::nn::Module {
  HeadImpl() {
    scale = register_parameter("scale", torch::linspace(0.5, 1.5, 7));
    bias = register_parameter("bias", torch::linspace(-0.1, 0.1, 11));
  }
  Tensor scale, bias;
};
TORCH_MODULE(Head);

/// Elements: 77 words, which the head looks them up in, 320, 287, 18.
struct UnitsImpl : torch::nn::Module {
  UnitsImpl() {
    register_module("words", words);
    register_module("up", up);
    register_module("down", down);
    register_module("head", head);
  }
  Tensor forward(const Tensor& tokens) {
    const auto seen = [&](const Tensor& x) {
      if (behind) behind();
      return x;
    };
    Tensor x = seen(torch::tanh(up(seen(words(tokens)))));
    x = seen(seen(down(x)) * head->scale);
    return seen(seen(torch::matmul(x, words->weight.t())) + head->bias);
  }
  torch::nn::Embedding words{11, 7};
  torch::nn::Linear up{7, 40}, down{40, 7};
  Head head;
  std::function<void()> behind;
};
TORCH_MODULE(Units);

TEST(ShardedUnits, ATiedLayerIsGatheredTwiceAndTheOneAroundItOnce) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    Units plain = test::make_seeded(5, [] { return Units(); });
    Units net = test::make_seeded(5, [] { return Units(); });
    ParallelModel parallel =
        initialize(net, sharded_config(R"(, "copies_per_host": 0)"), in(world));
    const auto group = parallel.mpu().data_group();
    const auto buckets = buckets_of(net->parameters()).at(0);
    // The largest one alone; whole weights begin at multiples of 64 bytes.
    net->behind = [&] { EXPECT_LE(buckets->gathered_bytes(), 4 * (288 + 48)); };
    DistributedDataParallel<Units> plain_ddp(plain, group), ddp(net, group);
    torch::optim::SGD reference(plain->parameters(), torch::optim::SGDOptions(0.1)),
        optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 3; ++step) {
      const Tensor tokens = (torch::arange(15).view({3, 5}) * (step + 2) + world.rank()) % 11;
      reference.zero_grad();
      optimizer.zero_grad();
      plain_ddp.forward(tokens).square().mean().backward();
      group->ledger().clear();
      const Tensor out = ddp.forward(tokens);
      EXPECT_EQ(group->ledger().total("all_gather").calls, 5);
      EXPECT_EQ(buckets->gathered_bytes(), 0);
      group->ledger().clear();
      out.square().mean().backward();
      EXPECT_EQ(group->ledger().total("all_gather").calls, 4);
      EXPECT_EQ(group->ledger().total("reduce_scatter").calls, 4);
      reference.step();
      optimizer.step();
      const auto others = plain->named_parameters();
      for (const auto& each : net->named_parameters()) {
        EXPECT_TRUE(torch::equal(full_tensor(each.value()), others[each.key()]))
            << step << ": " << each.key();
      }
    }
  });
}

}  // namespace
}  // namespace oslo::zero_test
