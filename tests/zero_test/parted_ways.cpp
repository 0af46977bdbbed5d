// Stage 3 with one copy of the weights a host, where ranks leave out other layers, each with
// numbers that cannot be cut, and end their forwards early: with what else there is beside it.
#include "tests/support/under_autocast.h"
#include "tests/zero_test/sharded_net.h"

namespace oslo::zero_test {
namespace {

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    linear = register_module("linear", torch::nn::Linear(7, 7));
    temperature = register_parameter("temperature", torch::full({}, 0.7));
    nothing = register_parameter("nothing", torch::ones({0, 7}));
  }
  Tensor forward(const Tensor& x) {
    const auto compute = [this](const Tensor& each) {
      return torch::tanh(linear->forward(each) * temperature) + nothing.sum();
    };
    if (!again_by_hand) return compute(x);
    return checkpoint(CheckpointOptions().keep({"matmul"}).keep_at_most(0.5), compute, x);
  }
  torch::nn::Linear linear{nullptr};
  Tensor temperature, nothing;
  bool again_by_hand = false;
};
TORCH_MODULE(Block);

struct WaysImpl : torch::nn::Module {
  WaysImpl() {
    for (int i = 0; i < 3; ++i) blocks->push_back(Block());
    register_module("blocks", blocks);
    head = register_module("head", torch::nn::Linear(7, 5));
    scale = register_parameter("scale", torch::full({}, 1.5));
    shift = register_parameter("shift", torch::ones({7}));
  }
  Tensor forward(Tensor x) {
    for (const int i : order) x = blocks[i]->as<Block>()->forward(x);
    if (order.size() % 2 == 1) x = x * scale;
    if (order.size() == 2) x = Scaled::apply(x, shift);
    return head->forward(x);
  }
  torch::nn::ModuleList blocks;
  torch::nn::Linear head{nullptr};
  Tensor scale, shift;
  std::vector<int> order{0, 1, 2};
};
TORCH_MODULE(Ways);

Ways make_ways() {
  return test::make_seeded(3, [] { return Ways(); });
}

/// Which layers a data rank calls, by a seed of its own; rank 1 ends its forward early.
std::vector<int> layers_of(int step, int rank) {
  std::vector<int> order;
  for (int layer = 0; layer < 3; ++layer) {
    if ((step * 5 + rank * 3 + layer * layer) % 4 != 0) order.push_back(layer);
  }
  if (rank == 1 && !order.empty()) order.resize(1);
  return order;
}

struct Case {
  int ranks, data;
  std::string more = "";
  int shards = 0;
  bool bits = false;  ///< sums come in the order of ranks, as on one device
  bool half = false;  ///< by "amp"
};

/// On one device: what every data rank computes, and zeros for what one does not.
void gradients_of_all(Ways& plain, int step, int ranks, bool half) {
  const Tensors all = plain->parameters();
  Tensors sums(all.size());
  for (int rank = 0; rank < ranks; ++rank) {
    for (const Tensor& each : all) each.mutable_grad().reset();
    plain->order = layers_of(step, rank);
    Tensor loss;
    {
      std::optional<test::UnderAutocast> guard;
      if (half) guard.emplace(torch::kBFloat16);
      loss = plain->forward(rows_of(step, rank)).square().mean();
    }
    loss.backward();
    for (size_t i = 0; i < all.size(); ++i) {
      if (!all[i].grad().defined()) continue;
      const Tensor share = all[i].grad() / ranks;
      sums[i] = sums[i].defined() ? sums[i] + share : share;
    }
  }
  for (size_t i = 0; i < sums.size(); ++i) all[i].mutable_grad() = sums[i];
}

void expect_alike(const Ways& net, const Ways& plain, bool bits, const std::string& what) {
  const auto others = plain->named_parameters();
  const auto equal = [&](const Tensor& a, const Tensor& b) {
    return bits ? torch::equal(a, b) : torch::allclose(a, b, 1e-4, 1e-6);
  };
  for (const auto& each : net->named_parameters()) {
    const Tensor &own = each.value(), &other = others[each.key()];
    EXPECT_TRUE(equal(full_tensor(own), other)) << what << ": " << each.key();
    ASSERT_EQ(own.grad().defined(), other.grad().defined()) << what << ": " << each.key();
    if (!own.grad().defined()) continue;
    EXPECT_TRUE(equal(full_tensor(own.grad()), other.grad()))
        << what << ": gradient of " << each.key();
  }
}

template <typename Rule, typename Options>
void expect_one_device(const Case& of, const Options& options,
                       const std::function<void(Ways&)>& prepare = {}) {
  SCOPED_TRACE(of.more);
  run_as_threads(
      of.ranks,
      [&](World world) {
        at::set_num_threads(1);
        Ways net = make_ways(), plain = make_ways();
        if (prepare) prepare(net);
        if (prepare) prepare(plain);
        const std::string amp = R"(, "amp": {"enabled": true, "dtype": "bfloat16"})";
        const std::string more = of.more + (of.half ? amp : "");
        ParallelModel parallel =
            initialize(net, zero_config(more, 3, of.shards, kOneCopy), in(world));
        const int own = parallel.mpu().rank("data");
        Rule optimizer(net->parameters(), options), reference(plain->parameters(), options);
        DistributedDataParallel<Ways> ddp(net, parallel.mpu().data_group());
        for (int step = 0; step < 8; ++step) {
          gradients_of_all(plain, step, of.data, of.half);
          optimizer.zero_grad();
          net->order = layers_of(step, own);
          ddp.forward(rows_of(step, own)).square().mean().backward();
          expect_alike(net, plain, of.bits, c10::str("before step ", step));
          optimizer.step();
          reference.step();
          expect_alike(net, plain, of.bits, c10::str("after step ", step));
        }
      },
      std::chrono::seconds(20));
}

const auto kSgd = torch::optim::SGDOptions(0.1).momentum(0.9);

TEST(PartedWays, WithNumbers) {
  expect_one_device<torch::optim::SGD>({.ranks = 3, .data = 3, .bits = true}, kSgd);
  expect_one_device<AdamW>({.ranks = 3, .data = 3, .bits = true}, adamw());
  expect_one_device<AdamW>({.ranks = 3, .data = 3, .bits = true}, adamw(), [](Ways& net) {
    net->scale.requires_grad_(false);
    net->blocks[1]->as<Block>()->temperature.requires_grad_(false);
  });
}

TEST(PartedWays, BesideTensorRanksAndCopies) {
  expect_one_device<AdamW>({.ranks = 4, .data = 4, .shards = 2}, adamw());
  expect_one_device<AdamW>({.ranks = 4, .data = 2, .more = kTensor}, adamw());
}

TEST(PartedWays, ComputedAgain) {
  const std::string again = R"(, "activation_checkpoint": )";
  for (const char* const how :
       {R"({"enabled": true})", R"({"enabled": true, "keep": ["matmul"], "keep_at_most": 0.5})",
        R"({"memory": "1GB"})"}) {
    expect_one_device<AdamW>({.ranks = 3, .data = 3, .more = again + how, .bits = true}, adamw());
    expect_one_device<AdamW>({.ranks = 4, .data = 2, .more = kTensor + again + how}, adamw());
  }
  const auto by_hand = [](Ways& net) {
    for (const auto& block : *net->blocks) block->as<Block>()->again_by_hand = true;
  };
  expect_one_device<AdamW>({.ranks = 3, .data = 3, .bits = true}, adamw(), by_hand);
  expect_one_device<AdamW>({.ranks = 4, .data = 2, .more = kTensor}, adamw(), by_hand);
}

TEST(PartedWays, InHalf) {
  const std::string again = R"(, "activation_checkpoint": {"enabled": true})";
  for (const std::string& more : {std::string(), again}) {
    expect_one_device<AdamW>({.ranks = 3, .data = 3, .more = more, .bits = true, .half = true},
                             adamw());
  }
}

/// As DistributedDataParallel has them, but for hooks, which see the average.
TEST(PartedWays, NumbersAreReadAndWritten) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    Ways net = make_ways(), plain = make_ways();
    ParallelModel parallel = initialize(net, sharded_config(kOneCopy), in(world));
    EXPECT_EQ(net->scale.item<float>(), 1.5F);
    for (Ways each : {net, plain}) {
      const torch::NoGradGuard no_grad;
      each->scale.mul_(4).clamp_(0, 4.6052);
      each->blocks[0]->as<Block>()->temperature.fill_(0.25);
    }
    std::vector<float> seen;
    const auto handle = net->scale.register_hook([&](const Tensor& gradient) {
      seen.push_back(full_tensor(gradient).item<float>());
      return gradient;
    });
    const auto loss_of = [&](Ways& of) {
      return of->forward(rows_of(0, world.rank())).square().mean();
    };
    loss_of(net).backward();
    net->scale.remove_hook(handle);
    DistributedDataParallel<Ways> ddp(plain, parallel.mpu().data_group(),
                                      DDPOptions().find_unused_parameters(true));
    ddp.forward(rows_of(0, world.rank())).square().mean().backward();
    expect_alike(net, plain, /*bits=*/true, "read and written");
    ASSERT_EQ(seen.size(), 1U);
    EXPECT_EQ(seen[0], plain->scale.grad().item<float>());
    EXPECT_EQ(net->scale.grad().item<float>(), seen[0]);
    const Tensor handed = torch::autograd::grad({loss_of(net)}, {net->scale})[0];
    EXPECT_EQ(full_tensor(handed).item<float>(), seen[0]);
    parallel.deparallelize();
    expect_alike(net, plain, /*bits=*/true, "deparallelized");
  });
}

/// Each rank's pass comes to the other model first.
TEST(PartedWays, TwoModelsInOnePass) {
  run_as_threads(
      2,
      [](World world) {
        at::set_num_threads(1);
        std::vector<Mlp> nets{make_mlp(), make_mlp()}, plains{make_mlp(), make_mlp()};
        const auto shared =
            std::vector<ParallelModel>{initialize(nets[0], sharded_config(kOneCopy), in(world)),
                                       initialize(nets[1], sharded_config(kOneCopy), in(world))};
        for (int step = 0; step < 4; ++step) {
          Tensor loss;
          for (const int number : {world.rank(), 1 - world.rank()}) {
            const Tensor own = nets[number]->forward(rows_of(step, world.rank())).square().mean();
            loss = loss.defined() ? loss + own : own;
          }
          loss.backward();
          for (const int number : {0, 1}) {
            for (const int rank : {0, 1}) {
              (plains[number]->forward(rows_of(step, rank)).square().mean() / 2).backward();
            }
            const auto others = plains[number]->named_parameters();
            for (const auto& each : nets[number]->named_parameters()) {
              EXPECT_TRUE(torch::allclose(full_tensor(each.value().grad()),
                                          others[each.key()].grad(), 1e-5, 1e-7))
                  << each.key();
            }
          }
        }
      },
      std::chrono::seconds(20));
}

}  // namespace
}  // namespace oslo::zero_test
