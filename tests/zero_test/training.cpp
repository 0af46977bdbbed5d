// ZeroOptimizer beside the plain optimizer on the same DDP program: bits, states, messages.
#include <optional>

#include "tests/zero_test/net.h"

namespace oslo::zero_test {
namespace {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;

/// Two groups, the second at a tenth of the rate.
template <typename Options>
Groups groups_of(const Net& net, const Options& options) {
  Options slow = options;
  slow.lr(options.lr() / 10);
  Tensors all = trained(net);
  Groups groups;
  groups.emplace_back(Tensors(all.begin(), all.begin() + 3), std::make_unique<Options>(options));
  groups.emplace_back(Tensors(all.begin() + 3, all.end()), std::make_unique<Options>(slow));
  return groups;
}

template <typename Optimizer>
int64_t elements_of_states(const Optimizer& optimizer) {
  int64_t all = 0;
  for (const auto& [_, state] : optimizer.state()) {
    for (const auto& [field, tensor] : kind_of(optimizer).state(*state).tensors) {
      all += tensor.numel();
    }
  }
  return all;
}

Tensors without_number(const Net& net) {
  Tensors all = trained(net);
  all.pop_back();
  return all;
}

/// Ten steps; the rate falls at the fifth. `states`: tensors of a state.
template <typename Base, typename Options>
void expect_as_ddp(int ranks, const Options& options, int states) {
  run_as_threads(ranks, [&](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    ParallelModel parallel = initialize(net, zero_config(), in(world));
    const MPU& mpu = parallel.mpu();
    const int rank = world.rank();
    Base reference(groups_of(plain, options), options);
    ZeroOptimizer<Base> optimizer(parallel, groups_of(net, options), options);
    DistributedDataParallel<Net> plain_ddp(plain, mpu.data_group()), ddp(net, mpu.data_group());
    for (int step = 0; step < 10; ++step) {
      const Tensors rows = batch(step, rank, ranks);
      reference.zero_grad();
      const Tensor expected = torch::mse_loss(plain_ddp.forward(rows[0]), rows[1]);
      expected.backward();
      reference.step();
      optimizer.zero_grad();
      const Tensor loss = torch::mse_loss(ddp.forward(rows[0]), rows[1]);
      mpu.data_group()->ledger().clear();
      loss.backward();
      // Of the bucket a rank gets its rows, as often as there are others; of a number all.
      const int64_t all = elements(trained(net)), own = elements_stepped(trained(net), ranks, rank);
      const int64_t scale = elements_stepped(trained(net), ranks, rank) -
                            elements_stepped(without_number(net), ranks, rank);
      const Traffic reduced = mpu.data_group()->ledger().total("reduce_scatter");
      EXPECT_EQ(reduced.calls, 1);
      EXPECT_EQ(reduced.bytes, 8 * (own - scale) * (ranks - 1));
      EXPECT_EQ(mpu.data_group()->ledger().total("all_reduce").bytes,
                8 * (2 * (ranks - 1) / ranks));
      EXPECT_EQ(mpu.data_group()->ledger().total().calls, 2);
      mpu.data_group()->ledger().clear();
      optimizer.step();
      // One bucket, of which a rank gets what the others have stepped. At first ranks compare what
      // they step, by a number of 8 bytes.
      Traffic gathered = mpu.data_group()->ledger().total("all_gather");
      if (step == 0) gathered = gathered - Traffic{1, ranks - 1, 8 * (ranks - 1)};
      EXPECT_EQ(gathered.calls, 1);
      EXPECT_EQ(gathered.elements, all - own);
      EXPECT_EQ(gathered.bytes, gathered.elements * 8);
      EXPECT_EQ(mpu.data_group()->ledger().total().calls, step == 0 ? 2 : 1);
      EXPECT_TRUE(torch::equal(loss, expected)) << "step " << step;
      expect_equal(net, plain, c10::str("step ", step));
      if (step == 4) {
        for (torch::optim::Optimizer* each :
             {(torch::optim::Optimizer*)&reference, (torch::optim::Optimizer*)&optimizer}) {
          for (auto& group : each->param_groups()) {
            group.options().set_lr(group.options().get_lr() / 3);
          }
        }
      }
    }
    EXPECT_EQ(elements_of_states(optimizer), states * elements_stepped(trained(net), ranks, rank));
    EXPECT_EQ(optimizer.param_groups()[0].params()[0].unsafeGetTensorImpl(),
              net->convolution->weight.unsafeGetTensorImpl());
  });
}

class ZeroRanks : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ZeroRanks, ::testing::Values(2, 3));

TEST_P(ZeroRanks, SGD) {
  expect_as_ddp<torch::optim::SGD>(
      GetParam(), torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.1), 1);
}
TEST_P(ZeroRanks, Adam) {
  expect_as_ddp<torch::optim::Adam>(GetParam(), torch::optim::AdamOptions(0.01).amsgrad(true), 3);
}
TEST_P(ZeroRanks, AdamW) {
  expect_as_ddp<torch::optim::AdamW>(GetParam(), torch::optim::AdamWOptions(0.01), 2);
}
TEST_P(ZeroRanks, RMSprop) {
  expect_as_ddp<torch::optim::RMSprop>(
      GetParam(), torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true), 3);
}
TEST_P(ZeroRanks, Adagrad) {
  expect_as_ddp<torch::optim::Adagrad>(
      GetParam(), torch::optim::AdagradOptions(0.1).initial_accumulator_value(0.3), 1);
}

TEST_P(ZeroRanks, AnyOtherOptimizerStepsWholeTensors) {
  const int ranks = GetParam();
  run_as_threads(ranks, [&](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    ParallelModel parallel = initialize(net, zero_config(), in(world));
    ByNorm reference(trained(plain), torch::optim::SGDOptions(0.1));
    ZeroOptimizer<ByNorm> optimizer(parallel, trained(net), torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 4; ++step) {
      train(plain, reference, step, step + 1);
      train(net, optimizer, step, step + 1);
      expect_equal(net, plain, c10::str("step ", step));
    }
  });
}

TEST(Zero, OfOneReplicaIsTheOptimizerItself) {
  run_as_threads(1, [&](World world) {
    Net plain = make_net(), net = make_net();
    ParallelModel parallel = initialize(net, zero_config(), in(world));
    torch::optim::AdamW reference(trained(plain), torch::optim::AdamWOptions(0.01));
    ZeroOptimizer<torch::optim::AdamW> optimizer(parallel, torch::optim::AdamWOptions(0.01));
    for (int step = 0; step < 3; ++step) {
      const Tensors rows = batch(step, 0, 1);
      const auto closure = [&rows](torch::optim::Optimizer& of, Net& model) {
        of.zero_grad();
        const Tensor loss = torch::mse_loss(model->forward(rows[0]), rows[1]);
        loss.backward();
        return loss;
      };
      const Tensor expected = reference.step([&] { return closure(reference, plain); });
      EXPECT_TRUE(torch::equal(optimizer.step([&] { return closure(optimizer, net); }), expected));
      expect_equal(net, plain, c10::str("step ", step));
    }
    EXPECT_EQ(parallel.mpu().data_group()->ledger().total().calls, 0);
    EXPECT_EQ(optimizer.state().size(), reference.state().size());
  });
}

TEST(Zero, ParametersMayBeAddedFrozenAndLeftOut) {
  run_as_threads(2, [&](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    ParallelModel parallel = initialize(net, zero_config(), in(world));
    const Tensors mine = trained(net), theirs = trained(plain);
    const auto options = torch::optim::AdamWOptions(0.01);
    torch::optim::AdamW reference(Tensors(theirs.begin(), theirs.begin() + 4), options);
    ZeroOptimizer<torch::optim::AdamW> optimizer(parallel, Tensors(mine.begin(), mine.begin() + 4),
                                                 options);
    const auto train = [&](torch::optim::Optimizer& of, Net& model, int step) {
      const Tensors rows = batch(step, 0, 1);
      of.zero_grad();
      torch::mse_loss(model->forward(rows[0]), rows[1]).backward();
      if (step == 3) model->up->weight.mutable_grad() = Tensor();  // nobody has one
      of.step();
    };
    for (int step = 0; step < 6; ++step) {
      if (step == 1) {
        static_cast<torch::optim::Optimizer&>(optimizer).add_param_group(
            torch::optim::OptimizerParamGroup(Tensors(mine.begin() + 4, mine.end())));
        reference.add_param_group(
            torch::optim::OptimizerParamGroup(Tensors(theirs.begin() + 4, theirs.end())));
      }
      if (step == 4) {
        net->down->weight.set_requires_grad(false);
        plain->down->weight.set_requires_grad(false);
      }
      train(reference, plain, step);
      train(optimizer, net, step);
      expect_equal(net, plain, c10::str("step ", step));
    }
  });
}

/// Frozen before the first step, by which it is known: zeros are a gradient, and weights decay.
TEST(Zero, AFrozenParameterThatHasAGradientIsStepped) {
  run_as_threads(2, [&](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    ParallelModel parallel = initialize(net, zero_config(), in(world));
    const auto options = torch::optim::AdamWOptions(0.01).weight_decay(0.1);
    torch::optim::AdamW reference(trained(plain), options);
    ZeroOptimizer<torch::optim::AdamW> optimizer(parallel, trained(net), options);
    const auto train = [&](torch::optim::Optimizer& of, Net& model) {
      const Tensors rows = batch(0, 0, 1);
      torch::mse_loss(model->forward(rows[0]), rows[1]).backward();
      model->up->weight.set_requires_grad(false);
      of.zero_grad(/*set_to_none=*/false);
      torch::mse_loss(model->forward(rows[0]), rows[1]).backward();
      of.step();
    };
    train(reference, plain);
    train(optimizer, net);
    expect_equal(net, plain, "after it");
  });
}

TEST(Zero, AThrowInTheStepLeavesTheOptimizerAsItWas) {
  struct Throwing : torch::optim::SGD {
    using torch::optim::SGD::SGD;
    at::Tensor step(LossClosure closure = nullptr) override {
      if (throws) throw std::runtime_error("thrown");
      return torch::optim::SGD::step(std::move(closure));
    }
    bool throws = true;
  };
  run_as_threads(2, [&](World world) {
    Net plain = make_net(), net = make_net();
    ParallelModel parallel = initialize(net, zero_config(), in(world));
    ZeroOptimizer<Throwing> optimizer(parallel, trained(net), torch::optim::SGDOptions(0.1));
    torch::optim::SGD reference(trained(plain), torch::optim::SGDOptions(0.1));
    const Tensors rows = batch(0, 0, 1);
    torch::mse_loss(net->forward(rows[0]), rows[1]).backward();
    torch::mse_loss(plain->forward(rows[0]), rows[1]).backward();
    EXPECT_THROW(optimizer.step(), std::runtime_error);
    EXPECT_EQ(optimizer.param_groups()[0].params().size(), trained(net).size());
    optimizer.throws = false;
    optimizer.step();
    reference.step();
    expect_equal(net, plain, "after it");
  });
}

TEST(Zero, ReplicasThatStepOtherParametersAreToldSo) {
  run_as_threads(2, [](World world) {
    Net net = make_net();
    ParallelModel parallel = initialize(net, zero_config(), in(world));
    Tensors stepped = trained(net);
    if (world.rank() == 1) stepped.erase(stepped.begin() + 1);
    ZeroOptimizer<AdamW> optimizer(parallel, stepped, adamw());
    EXPECT_THAT(error_of([&] { optimizer.step(); }),
                ::testing::HasSubstr("the list of what ZeroOptimizer steps of rank 1 is not that"));
  });
}

TEST(Zero, AParameterWithoutElementsIsPassedOver) {
  run_as_threads(2, [](World world) {
    torch::nn::ParameterList net;
    net->append(torch::zeros({0, 3}).set_requires_grad(true));
    net->append(torch::ones({3}, torch::kDouble).set_requires_grad(true));
    ParallelModel parallel = initialize(net, zero_config(), in(world));
    ZeroOptimizer<torch::optim::SGD> optimizer(parallel, torch::optim::SGDOptions(0.5));
    for (Tensor each : net->parameters()) each.mutable_grad() = torch::ones_like(each);
    optimizer.step();
    EXPECT_TRUE(torch::equal(net->parameters()[1], torch::full({3}, 0.5, torch::kDouble)));
  });
}

TEST(Zero, LbfgsIsRefusedByName) {
  run_as_threads(2, [&](World world) {
    Net net = make_net();
    ParallelModel parallel = initialize(net, zero_config(), in(world));
    EXPECT_THAT(error_of([&] {
                  ZeroOptimizer<torch::optim::LBFGS> optimizer(parallel, trained(net),
                                                               torch::optim::LBFGSOptions(1));
                }),
                ::testing::HasSubstr("cannot share out LBFGS"));
  });
}

}  // namespace
}  // namespace oslo::zero_test
