// Where autocast by the config holds, and where the program's own guards do.
#include "parallelizers/placement/carrier/access.h"
#include "tests/mixed_precision_test/cases.h"

namespace oslo::test {
namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() : up(register_module("up", torch::nn::Linear(5, 7))) {}
  torch::Tensor forward(const torch::Tensor& x) { return up(x); }
  torch::nn::Linear up;
};
TORCH_MODULE(Net);

Net make_net() {
  return make_seeded(3, [] { return Net(); });
}

void on_one_rank(const std::function<void(const World&)>& run) {
  run_as_threads(1, [&](const World& world) {
    at::set_num_threads(1);
    run(world);
  });
}

TEST(MixedPrecisionRegions, AGuardOfTheProgramIsObeyed) {
  on_one_rank([](const World& world) {
    Net net = make_net();
    initialize(net, Config::parse(amp_config(torch::kBFloat16)), in(world));
    const torch::Tensor x = make_seeded(1, [] { return torch::randn({3, 5}); });
    EXPECT_EQ(net(x).scalar_type(), torch::kBFloat16);
    {
      const UnderAutocast half(torch::kHalf);
      EXPECT_EQ(net(x).scalar_type(), torch::kHalf);
      const UnderAutocast off(torch::kHalf, /*enabled=*/false);
      EXPECT_EQ(net(x).scalar_type(), torch::kFloat);
      expect_same(net(x), make_net()(x), "switched off");
    }
    EXPECT_EQ(net(x).scalar_type(), torch::kBFloat16);
  });
}

TEST(MixedPrecisionRegions, LibTorchsOwnStateIsAsBefore) {
  on_one_rank([](const World& world) {
    Net net = make_net();
    initialize(net, Config::parse(amp_config(torch::kHalf)), in(world));
    net(torch::ones({2, 5})).sum().backward();
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), torch::kBFloat16);
    EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
    const torch::Tensor a = torch::ones({2, 2});
    EXPECT_EQ(a.mm(a).scalar_type(), torch::kFloat);  // no value of the model
  });
}

TEST(MixedPrecisionRegions, GradientsAndStatesAreNotOfTheForward) {
  on_one_rank([](const World& world) {
    Net net = make_net();
    initialize(net, Config::parse(amp_config(torch::kBFloat16)), in(world));
    net(torch::ones({2, 5})).sum().backward();
    const torch::NoGradGuard no_grad;
    const torch::Tensor gradient = net->up->weight.grad();
    const torch::Tensor state = torch::zeros_like(net->up->weight).add_(gradient);
    for (const torch::Tensor& each : {gradient, state}) {
      const torch::Tensor product = each.mm(each.t());
      EXPECT_EQ(product.scalar_type(), torch::kFloat);
      EXPECT_FALSE(is_placed(product));
    }
  });
}

TEST(MixedPrecisionRegions, AWeightIsCastOnceAForwardAndAgainAfterAWrite) {
  for (const bool master : {false, true}) {
    on_one_rank([&](const World& world) {
      Net net = make_net(), plain = make_net();
      const char* const more = master ? R"("master_weights": true, )" : "";
      initialize(net, Config::parse(amp_config(torch::kBFloat16, 1, 1, more)), in(world));
      const torch::Tensor x = make_seeded(1, [] { return torch::randn({3, 5}); });
      const auto expect_alike = [&](const std::string& when) {
        for (Net* each : {&net, &plain}) (*each)->zero_grad();
        torch::Tensor expected;
        {
          const UnderAutocast guard(torch::kBFloat16);
          expected = plain(plain(x).narrow(1, 0, 5));  // twice: one cast, whose gradients add up
          expected.sum().backward();
        }
        const torch::Tensor output = net(net(x).narrow(1, 0, 5));
        output.sum().backward();
        expect_same(output, expected, when);
        expect_same_gradients(*net, *plain);
        const torch::NoGradGuard no_grad;
        expect_same(
            net(x), [&] { return UnderAutocast(torch::kBFloat16), plain(x); }(),
            when + ", evaluated");
      };
      expect_alike("at first");
      expect_alike("again");
      {
        const torch::NoGradGuard no_grad;
        for (Net* each : {&net, &plain}) (*each)->up->weight.mul_(1.25);
      }
      expect_alike("after a write");
      {
        const torch::NoGradGuard no_grad;
        net(x);  // what is kept of this one is no one's gradient
      }
      expect_alike("after an evaluation");
      for (Net* each : {&net, &plain}) (*each)->to(torch::kDouble), (*each)->to(torch::kFloat);
      expect_alike("after to()");
    });
  }
}

TEST(MixedPrecisionRegions, CastsOfWeightsKeepNoModelAlive) {
  for (const bool master : {false, true}) {
    std::weak_ptr<const ModelContext> context;
    on_one_rank([&](const World& world) {
      Net net = make_net();
      const char* const more = master ? R"("master_weights": true, )" : "";
      const auto parallel =
          initialize(net, Config::parse(amp_config(torch::kBFloat16, 1, 1, more)), in(world));
      net(torch::ones({2, 5})).sum().backward();
      net(torch::ones({2, 5}));
      context = layout(net->up->weight)->context();
      EXPECT_FALSE(context.expired());
    });
    EXPECT_TRUE(context.expired());
  }
}

TEST(MixedPrecisionRegions, WhatIsComputedAgainIsComputedAsInForward) {
  for (const bool master : {false, true}) {
    on_one_rank([&](const World& world) {
      Net net = make_net(), plain = make_net();
      const char* const more = master ? R"("master_weights": true, )" : "";
      initialize(net, Config::parse(amp_config(torch::kHalf, 1, 1, more)), in(world));
      const torch::Tensor x = make_seeded(1, [] { return torch::randn({3, 5}); });
      const auto twice = [](Net each, const torch::Tensor& of) {
        return each(each(of).narrow(1, 0, 5).sigmoid()).sigmoid();
      };
      torch::Tensor expected;
      {
        const UnderAutocast guard(torch::kHalf);
        expected = twice(plain, x);
        expected.sum().backward();
      }
      for (int step = 0; step < 2; ++step) {
        net->zero_grad();
        const torch::Tensor output =
            checkpoint([&](const torch::Tensor& of) { return twice(net, of); }, x);
        expect_same(output, expected, "output");
        output.sum().backward();
        expect_same_gradients(*net, *plain);
      }
    });
  }
}

}  // namespace
}  // namespace oslo::test
