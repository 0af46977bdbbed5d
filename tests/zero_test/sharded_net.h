#pragma once

#include <functional>
#include <string>
#include <vector>

#include "parallelizers/data/sharded/shard_parameters.h"
#include "tests/zero_test/net.h"

namespace oslo::zero_test {

inline Config sharded_config(const std::string& more = "") {
  return Config::parse(R"({"zero_optimization": {"enabled": true, "stage": 3)" + more + "}}");
}

inline int64_t gathered_bytes(const Net& net) {
  int64_t bytes = 0;
  for (const auto& buckets : buckets_of(trained(net))) bytes += buckets->gathered_bytes();
  return bytes;
}

inline void expect_as_ddp(const Tensor& seen, const Tensor& plain, int ranks,
                          const std::string& what) {
  const Tensor whole = full_tensor(seen);
  EXPECT_TRUE(ranks == 2 ? torch::equal(whole, plain) : torch::allclose(whole, plain, 1e-10, 1e-12))
      << what;
}

struct MlpImpl : torch::nn::Module {
  explicit MlpImpl(int layers = 3) {
    for (int i = 0; i < layers; ++i) blocks->push_back(torch::nn::Linear(7, 7));
    register_module("blocks", blocks);
    bias = register_parameter("bias", torch::ones({7}));
  }
  Tensor forward(Tensor x) {
    for (const int i : order) {
      x = torch::tanh(blocks[i]->as<torch::nn::Linear>()->forward(x));
      if (behind) behind(i);
    }
    return x + bias;
  }
  torch::nn::ModuleList blocks;
  Tensor bias, kept;
  std::vector<int> order{0, 1, 2};
  std::function<void(int block)> behind;
};
TORCH_MODULE(Mlp);

inline Mlp make_mlp(int layers = 3) {
  return test::make_seeded(3, [&] { return Mlp(layers); });
}

/// A user's own.
struct Scaled : torch::autograd::Function<Scaled> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x,
                        const Tensor& weight) {
    context->save_for_backward({x, weight});
    return x * weight;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0] * saved[1], (gradients[0] * saved[0]).sum(0)};
  }
};

inline Tensor rows_of(int step, int rank) {
  return torch::sin(torch::arange(5 * 7, torch::kFloat).view({5, 7}) * 0.3 + step + 10 * rank);
}

/// `bits`: where sums come in the same order.
inline void expect_same(const Mlp& net, const Mlp& plain, bool bits, const std::string& what) {
  const auto equal = [&](const Tensor& a, const Tensor& b) {
    return bits ? torch::equal(a, b) : torch::allclose(a, b, 1e-4, 1e-6);
  };
  const auto others = plain->named_parameters();
  for (const auto& each : net->named_parameters()) {
    const Tensor& other = others[each.key()];
    EXPECT_TRUE(equal(full_tensor(each.value()), other)) << what << ": " << each.key();
    ASSERT_EQ(each.value().grad().defined(), other.grad().defined()) << what << ": " << each.key();
    if (!other.grad().defined()) continue;
    EXPECT_TRUE(equal(full_tensor(each.value().grad()), other.grad()))
        << what << ": gradient of " << each.key();
  }
}

/// `step(i, ddp, x)`: one step's forwards and backwards, the same for both.
template <typename Step>
void expect_steps_as_ddp(const Step& step, const std::string& more = "",
                         const std::function<void(Mlp&)>& prepare = {}, bool bits = true) {
  run_as_threads(2, [&](World world) {
    at::set_num_threads(1);
    Mlp plain = make_mlp(), net = make_mlp();
    if (prepare) prepare(plain);
    if (prepare) prepare(net);
    ParallelModel parallel = initialize(net, sharded_config(more), in(world));
    const auto group = parallel.mpu().data_group();
    torch::optim::SGD reference(plain->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
        optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    const auto options = DDPOptions().find_unused_parameters(true);
    DistributedDataParallel<Mlp> plain_ddp(plain, group, options), ddp(net, group, options);
    for (int i = 0; i < 6; ++i) {
      reference.zero_grad();
      optimizer.zero_grad();
      step(i, plain_ddp, plain, rows_of(i, world.rank()));
      step(i, ddp, net, rows_of(i, world.rank()));
      expect_same(net, plain, bits, c10::str("before step ", i));
      reference.step();
      optimizer.step();
      expect_same(net, plain, bits, c10::str("after step ", i));
    }
  });
}

}  // namespace oslo::zero_test
