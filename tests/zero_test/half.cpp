// Parameters in half: LibTorch's kernels round the last elements of a tensor otherwise than others.
#include "tests/zero_test/net.h"

namespace oslo::zero_test {
namespace {

template <typename Base, typename Options>
void expect_bits(torch::Dtype type, const Options& options) {
  run_as_threads(3, [&](World world) {
    at::set_num_threads(1);
    const auto make = [&] {
      torch::nn::ParameterList net;
      for (const int64_t size : {301, 7, 161, 65, 3}) {
        const Tensor values = torch::sin(torch::arange(size, torch::kDouble) * 0.7 + size);
        net->append(values.to(type).set_requires_grad(true));
      }
      return net;
    };
    torch::nn::ParameterList plain = make(), net = make();
    ParallelModel parallel = initialize(net, zero_config(), in(world));
    Base reference(plain->parameters(), options);
    ZeroOptimizer<Base> optimizer(parallel, net->parameters(), options);
    for (int step = 0; step < 20; ++step) {
      for (torch::nn::ParameterList each : {plain, net}) {
        for (Tensor parameter : each->parameters()) {
          const Tensor steps = torch::arange(parameter.numel(), torch::kDouble);
          parameter.mutable_grad() = torch::cos(steps * 1.1 + step).to(type);
        }
      }
      reference.step();
      optimizer.step();
      for (size_t i = 0; i < plain->size(); ++i) {
        EXPECT_TRUE(torch::equal(net->parameters()[i], plain->parameters()[i]))
            << type << " parameter " << i << " step " << step;
      }
    }
  });
}

class ZeroInHalf : public ::testing::TestWithParam<torch::Dtype> {};
INSTANTIATE_TEST_SUITE_P(Types, ZeroInHalf, ::testing::Values(torch::kBFloat16, torch::kHalf));

TEST_P(ZeroInHalf, IsTheOptimizerBitForBit) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace)
  expect_bits<SGD>(GetParam(), SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
  expect_bits<Adam>(GetParam(), AdamOptions(0.01).eps(1e-4));
  expect_bits<AdamW>(GetParam(), AdamWOptions(0.01).eps(1e-4).amsgrad(true));
  expect_bits<RMSprop>(GetParam(), RMSpropOptions(0.01).eps(1e-4).momentum(0.5));
  expect_bits<Adagrad>(GetParam(), AdagradOptions(0.1).eps(1e-4));
}

}  // namespace
}  // namespace oslo::zero_test
