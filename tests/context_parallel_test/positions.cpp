// What programs do with single positions of a cut sequence: reading, writing in place, shifting.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tests/models/sequence_language_model.h"

namespace sequence_model {
namespace {

/// A look-up, what a program does with it, and a layer behind.
struct NetImpl : torch::nn::Module {
  using Middle = std::function<Tensor(Tensor x)>;
  explicit NetImpl(Middle middle) : middle(std::move(middle)) {
    embed = register_module("embed", torch::nn::Embedding(11, 6));
    up = register_module("up", torch::nn::Linear(6, 7));
  }
  Tensor forward(const Tensor& ids) { return up->forward(middle(embed->forward(ids).tanh())); }
  Middle middle;
  torch::nn::Embedding embed{nullptr};
  torch::nn::Linear up{nullptr};
};
TORCH_MODULE(Net);

struct Use {
  const char* name;
  NetImpl::Middle middle;
};

void PrintTo(const Use& use, std::ostream* out) {
  *out << use.name;
}

class OfPositions : public ::testing::TestWithParam<Use> {};

const std::vector<Use>& uses() {
  static const std::vector<Use> all = {
      {"first", [](Tensor x) { return x.select(1, 0); }},
      {"last",
       [](Tensor x) {
         return x.index({Slice(), -1});
       }},
      {"fewInTheMiddle", [](Tensor x) { return x.slice(1, 4, 6); }},
      {"shiftedSum", [](Tensor x) { return x.slice(1, 1, None) + x.slice(1, 0, -1); }},
      {"difference", [](Tensor x) { return x - x.roll(1, 1); }},
      {"tokenInFront",
       [](Tensor x) {
         return torch::cat({x.slice(1, 0, 1).mean(1, true), x}, 1);
       }},
      {"everySecond", [](Tensor x) { return x.slice(1, 0, None, 2); }},
      {"writesFew",
       [](Tensor x) {
         x = x + 0;
         x.slice(1, 1, 4).mul_(2.5);
         return x;
       }},
      {"writesMany",
       [](Tensor x) {
         x = x + 0;
         x.slice(1, 2, None).mul_(2.5);
         return x;
       }},
      {"writesOne",
       [](Tensor x) {
         x = x * 1;
         x.select(1, 5).zero_();
         return x;
       }},
      {"putsOne",
       [](Tensor x) {
         x = x * 1;
         x.index_put_({Slice(), 0}, 0.5);
         return x;
       }},
      {"putsSome",
       [](Tensor x) {
         x = x * 1;
         x.index_put_({Slice(), Slice(2, 5)}, x.slice(1, 5, 8).detach() + 1);
         return x;
       }},
      {"fillsPositions",
       [](Tensor x) {
         Tensor y = torch::empty_like(x);
         for (int64_t i = 0; i < x.size(1); ++i) y.select(1, i).copy_(x.select(1, -1 - i));
         return y;
       }},
  };
  return all;
}

INSTANTIATE_TEST_SUITE_P(Of, OfPositions, ::testing::ValuesIn(uses()),
                         [](const auto& info) { return std::string(info.param.name); });

void expect_use(const NetImpl::Middle& middle, const char* order) {
  for (const int ranks : {2, 3}) {
    oslo::run_as_threads(ranks, [&](oslo::World world) {
      at::set_num_threads(1);
      const auto make = [&] {
        Net net(middle);
        net->to(torch::kFloat64);
        return net;
      };
      Net reference = parity::make_seeded(7, make), net = parity::make_seeded(7, make);
      const Tensor ids = torch::arange(18).mul(5).remainder(11).view({2, 9});
      oslo::InitializeOptions how;
      how.world = world;
      const auto config =
          c10::str(R"({"context_parallel_size": )", ranks, ", ", in_order(order), "}");
      oslo::initialize(net, oslo::Config::parse(config), how);
      const Tensor expected = reference->forward(ids), found = net->forward(ids);
      parity::expect_close(oslo::full_tensor(found.detach()), expected.detach(), "output");
      expected.pow(3).sum().backward();
      found.pow(3).sum().backward();
      parity::expect_gradients(*net, *reference);
    });
  }
}

TEST_P(OfPositions, EqualsOneDevice) {
  expect_use(GetParam().middle, "contiguous");
}

TEST_P(OfPositions, EqualsOneDeviceByHeadAndTail) {
  expect_use(GetParam().middle, "head_tail");
}

/// Ranks before the tail normalize nothing, in the example's run on shapes as well.
TEST(Tail, IsNormalizedWhereItLies) {
  oslo::run_as_threads(3, [&](oslo::World world) {
    at::set_num_threads(1);
    const auto make = [] {
      Net net([](const Tensor& x) { return torch::layer_norm(x.slice(1, 7, None), {6}); });
      net->to(torch::kFloat64);
      return net;
    };
    Net reference = parity::make_seeded(7, make), net = parity::make_seeded(7, make);
    const Tensor ids = torch::arange(18).mul(5).remainder(11).view({2, 9});
    const auto loss = [&](Net& of) { return of->forward(ids).pow(3).sum(); };
    oslo::InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { loss(net).backward(); };
    oslo::initialize(net, oslo::Config::parse(R"({"context_parallel_size": 3})"), how);
    loss(reference).backward();
    loss(net).backward();
    parity::expect_gradients(*net, *reference);
  });
}

TEST(OnePosition, IsBroughtByTheRankThatHasItAndNoOtherIs) {
  oslo::run_as_threads(3, [&](oslo::World world) {
    at::set_num_threads(1);
    Net net =
        parity::make_seeded(7, [] { return Net([](const Tensor& x) { return x.select(1, -1); }); });
    const Tensor ids = torch::arange(18).remainder(11).view({2, 9});
    oslo::InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { net->forward(ids).sum().backward(); };
    const auto parallel = oslo::initialize(
        net, oslo::Config::parse(R"({"context_parallel_size": 3, "strict": true})"), how);
    oslo::Ledger& ledger = parallel.mpu().group("context")->ledger();
    ledger.clear();
    const Tensor found = net->forward(ids);
    EXPECT_EQ(found.sizes(), at::IntArrayRef({2, 7}));
    EXPECT_EQ(ledger.total("all_gather").calls, 1);
    EXPECT_EQ(ledger.total().calls, 1);
    EXPECT_EQ(ledger.total().elements, world.rank() == 2 ? 0 : 2 * 6);
  });
}

}  // namespace
}  // namespace sequence_model
