// Programs off the usual way: parameters that are laid otherwise after the first step, gradients
// with strides of their own, optimizers that look at whole tensors beside tensor ranks, and what is
// refused, on every rank.
#include "tests/support/temporary_directory.h"
#include "tests/zero_test/net.h"

namespace oslo::zero_test {
namespace {

using ::testing::HasSubstr;
using torch::optim::SGD;
using torch::optim::SGDOptions;

TEST(Zero, AWholeTensorIsThatOfAllTensorRanks) {
  run_as_threads(4, [](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net();
    ParallelModel parallel = initialize(
        net, zero_config(R"(, "model_parallelism": {"tensor_parallel_size": 2})"), in(world));
    ByNorm reference(trained(plain), SGDOptions(0.1));
    ZeroOptimizer<ByNorm> optimizer(parallel, trained(net), SGDOptions(0.1));
    train(plain, reference, 0, 4);
    train(net, optimizer, 0, 4);
    expect_near(net, plain);
  });
}

void lay_otherwise(Net& net) {
  net->convolution->weight.set_data(net->convolution->weight.detach().contiguous());
  net->up->weight.set_data(net->up->weight.detach().t().contiguous().t());
}

TEST(Zero, ParametersMayBeLaidOtherwiseBetweenSteps) {
  const test::TemporaryDirectory folder;
  run_as_threads(2, [&](World world) {
    at::set_num_threads(1);
    Net plain = make_net(), net = make_net(), other = make_net();
    ParallelModel parallel = initialize(net, zero_config(), in(world));
    ParallelModel second = initialize(other, zero_config(), in(world));
    AdamW reference(trained(plain), adamw());
    ZeroOptimizer<AdamW> optimizer(parallel, trained(net), adamw());
    ZeroOptimizer<AdamW> loaded(second, trained(other), adamw());
    train(plain, reference, 0, 3);
    train(net, optimizer, 0, 3);
    lay_otherwise(net);
    parallel.save_parallelized((folder / "saved").string(), SaveOptions().optimizer(&optimizer));
    train(plain, reference, 3, 6);
    train(net, optimizer, 3, 6);
    expect_near(net, plain);
    second.from_parallelized((folder / "saved").string(), LoadOptions().optimizer(&loaded));
    train(other, loaded, 3, 6);
    expect_near(other, plain);
  });
}

TEST(Zero, ALayerMayChangeItsType) {
  run_as_threads(3, [](World world) {
    Net plain = make_net(), net = make_net();
    ParallelModel parallel = initialize(net, zero_config(), in(world));
    const SGDOptions options = SGDOptions(0.1).momentum(0.9);
    SGD reference(trained(plain), options);
    ZeroOptimizer<SGD> optimizer(parallel, trained(net), options);
    const auto step = [](Net& of, SGD& by) {
      for (const Tensor& each : trained(of)) each.mutable_grad() = torch::sin(each.detach());
      by.step();
    };
    for (int i = 0; i < 4; ++i) {
      if (i == 2) {
        plain->convolution->to(torch::kFloat);
        net->convolution->to(torch::kFloat);
      }
      step(plain, reference);
      step(net, optimizer);
    }
    expect_equal(net, plain, "after the change");
  });
}

struct OwnSgd : SGD {
  using SGD::SGD;
};

TEST(Zero, StatesWithTheStridesOfGradientsAreSavedInTheirOrder) {
  const test::TemporaryDirectory folder;
  run_as_threads(2, [&](World world) {
    Net plain = make_net(), net = make_net(), other = make_net();
    ParallelModel parallel = initialize(net, zero_config(), in(world));
    ParallelModel second = initialize(other, zero_config(), in(world));
    const SGDOptions options = SGDOptions(0.1).momentum(0.9);
    OwnSgd reference(trained(plain), options);
    ZeroOptimizer<OwnSgd> optimizer(parallel, trained(net), options);
    ZeroOptimizer<OwnSgd> loaded(second, trained(other), options);
    const auto go = [](Net& of, SGD& by, int from, int to) {
      for (int step = from; step < to; ++step) {
        for (const Tensor& each : trained(of)) {
          Tensor gradient = torch::sin(torch::arange(each.numel(), torch::kDouble) + step);
          gradient = gradient.view(each.sizes());
          if (each.dim() == 2) gradient = gradient.t().contiguous().t();
          each.mutable_grad() = gradient;
        }
        by.step();
      }
    };
    go(plain, reference, 0, 4);
    go(net, optimizer, 0, 2);
    parallel.save_parallelized((folder / "saved").string(), SaveOptions().optimizer(&optimizer));
    second.from_parallelized((folder / "saved").string(), LoadOptions().optimizer(&loaded));
    go(other, loaded, 2, 4);
    expect_equal(other, plain, "loaded");
  });
}

/// A list of parameters; each with a gradient of ones.
template <typename Base>
std::string error_of_step(World world, const Tensors& parameters) {
  torch::nn::ParameterList net;
  for (const Tensor& each : parameters) net->append(each.detach().set_requires_grad(true));
  ParallelModel parallel = initialize(net, zero_config(), in(world));
  ZeroOptimizer<Base> optimizer(parallel, SGDOptions(0.5));
  for (Tensor each : net->parameters()) each.mutable_grad() = torch::ones(each.sizes());
  return error_of([&] { optimizer.step(); });
}

TEST(Zero, TwoParametersOverOneMemoryAreRefused) {
  run_as_threads(2, [](World world) {
    const Tensor memory = torch::zeros({10});
    EXPECT_THAT(error_of_step<SGD>(world, {memory.slice(0, 0, 6), memory.slice(0, 5, 10)}),
                HasSubstr("lie in one memory"));
    const Tensor whole = torch::zeros({3});
    EXPECT_THAT(error_of_step<OwnSgd>(world, {torch::zeros({2}), whole, whole}),
                HasSubstr("lie in one memory"));
  });
}

TEST(Zero, GapsAndRepeatsAreRefusedOnAllRanks) {
  run_as_threads(3, [](World world) {
    EXPECT_THAT(error_of_step<OwnSgd>(world, {torch::ones({3, 4}).slice(1, 0, 2)}),
                HasSubstr("gaps or repeats"));
    EXPECT_THAT(error_of_step<SGD>(world, {torch::ones({2, 1}).expand({2, 5})}),
                HasSubstr("gaps or repeats"));
  });
}

TEST(Zero, SparseGradientsAreRefusedOnAllRanks) {
  run_as_threads(2, [](World world) {
    torch::nn::Sequential net = test::make_seeded(5, [] {
      return torch::nn::Sequential(
          torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 3).sparse(true)),
          torch::nn::Linear(3, 40));
    });
    ParallelModel parallel = initialize(net, zero_config(), in(world));
    ZeroOptimizer<SGD> optimizer(parallel, SGDOptions(0.5));
    net->forward(torch::tensor({1, 2})).sum().backward();
    EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("is sparse"));
  });
}

TEST(Zero, ARankThatStepsNothingIsTold) {
  run_as_threads(2, [](World world) {
    Net net = make_net();
    ParallelModel parallel = initialize(net, zero_config(), in(world));
    const Tensors stepped = world.rank() == 1 ? Tensors{net->frozen} : trained(net);
    ZeroOptimizer<AdamW> optimizer(parallel, stepped, adamw());
    EXPECT_THAT(error_of([&] { optimizer.step(); }),
                HasSubstr("the list of what ZeroOptimizer steps of rank 1 is not that"));
  });
}

TEST(Zero, AnArchivesShareIsNotSavedAsTheWhole) {
  const test::TemporaryDirectory folder;
  run_as_threads(2, [&](World world) {
    Net net = make_net();
    ParallelModel parallel = initialize(net, zero_config(), in(world));
    ZeroOptimizer<AdamW> optimizer(parallel, trained(net), adamw());
    train(net, optimizer, 0, 2);
    const std::string file = (folder / c10::str("optimizer", world.rank())).string();
    torch::save(optimizer, file);
    torch::load(optimizer, file);
    const auto save = [&] {
      parallel.save_parallelized((folder / "saved").string(), SaveOptions().optimizer(&optimizer));
    };
    EXPECT_THAT(error_of(save), HasSubstr("whole states can be had after its next step"));
    train(net, optimizer, 2, 3);
    save();
  });
}

}  // namespace
}  // namespace oslo::zero_test
