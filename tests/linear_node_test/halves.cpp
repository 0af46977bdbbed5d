// A backward pass in two halves: the first gives the gradients of inputs, the second those of
// parameters, each once, bit for bit those of one pass.
#include <gmock/gmock.h>
#include <torch/csrc/autograd/variable.h>

#include "parallelizers/data/distributed_data_parallel.h"
#include "parallelizers/placement/carrier/split_backward.h"
#include "parallelizers/placement/elsewhere/stage_residence.h"
#include "tests/support/placed_values.h"
#include "tests/support/recorded_nodes.h"

namespace linear_node {
namespace {

using oslo::SplitBackward;
using oslo::test::RecordedNodes;
using placed_values::error_of;
using placed_values::expect_close;
using placed_values::leaf;
using placed_values::marked;
using placed_values::numbers;
using placed_values::on_ranks;
using placed_values::Tensor;
using testing::HasSubstr;

/// A perceptron between a table and the same table as its head, all of them marked.
struct Net {
  Tensor table, norm, in, in_bias, out;

  std::vector<Tensor> parameters() const { return {table, norm, in, in_bias, out}; }

  Tensor forward(const Tensor& tokens) const {
    Tensor x = at::layer_norm(at::embedding(table, tokens), {4}, norm);
    const Tensor h = (x.matmul(in.t()) + in_bias).tanh();  // as torch::nn::Linear does
    return at::linear(x + at::linear(h, out), table);
  }
};

Net plain_net() {
  return {leaf(numbers({9, 4})), leaf(numbers({4}, 0.2)), leaf(numbers({7, 4}, 0.5)),
          leaf(numbers({7}, 0.6)), leaf(numbers({4, 7}, 0.7))};
}

Net marked_net(const oslo::MPU& mpu) {
  Net net = plain_net();
  placed_values::mark(net.table, mpu, 0);
  placed_values::mark(net.norm, mpu, 0);
  placed_values::mark(net.in, mpu, 0);
  placed_values::mark(net.in_bias, mpu, 0);
  placed_values::mark(net.out, mpu, 1);
  return net;
}

Tensor tokens() {
  return torch::arange(6, torch::kLong).view({2, 3});
}

Tensor loss_of(const Tensor& logits) {
  return logits.sin().sum();
}

void expect_equal_gradients(const Net& mine, const Net& expected) {
  const auto own = mine.parameters(), others = expected.parameters();
  for (size_t i = 0; i < own.size(); ++i) {
    EXPECT_TRUE(torch::equal(oslo::local_tensor(own[i].grad()).detach(),
                             oslo::local_tensor(others[i].grad()).detach()))
        << i;
  }
}

TEST(LinearHalves, LeaveTheParametersToTheSecond) {
  on_ranks(2, [](const oslo::MPU& mpu) {
    const Net plain = plain_net(), undivided = marked_net(mpu), net = marked_net(mpu);
    for (int step = 0; step < 2; ++step) {  // the second adds to gradients that are there
      loss_of(plain.forward(tokens())).backward();
      loss_of(undivided.forward(tokens())).backward();
      const auto split = std::make_shared<SplitBackward>();
      Tensor loss;
      {
        const SplitBackward::Scope scope(split);
        loss = loss_of(net.forward(tokens()));
      }
      EXPECT_EQ(SplitBackward::current(), nullptr);
      const Tensor before = step == 0 ? Tensor() : net.in.grad().clone();
      RecordedNodes nodes;
      loss.backward();
      EXPECT_EQ(nodes.count("OsloAccumulate"), 0);
      EXPECT_EQ(nodes.count("OsloUnmark"), 3);  // of the look-up, the norm and the bias
      if (step == 0) {
        for (const Tensor& parameter : net.parameters()) EXPECT_FALSE(parameter.grad().defined());
      } else {
        EXPECT_TRUE(torch::equal(oslo::local_tensor(net.in.grad()), oslo::local_tensor(before)));
      }
      EXPECT_GT(split->left(), 0u);
      split->run();
      EXPECT_EQ(split->left(), 0u);
      EXPECT_EQ(nodes.count("OsloAccumulate"), 5);
      expect_equal_gradients(net, undivided);
    }
    const auto own = net.parameters(), expected = plain.parameters();
    for (size_t i = 0; i < own.size(); ++i) expect_close(own[i].grad(), expected[i].grad(), "");
  });
}

TEST(LinearHalves, GiveTheGradientOfTheInputInTheFirst) {
  on_ranks(2, [](const oslo::MPU& mpu) {
    const Net net = marked_net(mpu), plain = plain_net();
    const Tensor x = leaf(numbers({3, 4})), plain_x = leaf(x);
    const auto split = std::make_shared<SplitBackward>();
    const auto forward = [](const Net& of, const Tensor& input) {
      return at::linear(at::linear(input, of.in, of.in_bias).tanh(), of.out);
    };
    {
      const SplitBackward::Scope scope(split);
      const int64_t before = placed_values::all_reduces(mpu);
      loss_of(forward(net, x)).backward();
      EXPECT_EQ(placed_values::all_reduces(mpu) - before, 2);
    }
    loss_of(forward(plain, plain_x)).backward();
    expect_close(x.grad(), plain_x.grad(), "x");
    EXPECT_FALSE(net.in.grad().defined());
    const int64_t before = placed_values::all_reduces(mpu);
    split->run();
    EXPECT_EQ(placed_values::all_reduces(mpu), before);
    expect_close(net.in.grad(), plain.in.grad(), "in");
    expect_close(net.out.grad(), plain.out.grad(), "out");
  });
}

TEST(LinearHalves, DeferTheProductsOfCastAndTransposedWeights) {
  on_ranks(2, [](const oslo::MPU& mpu) {
    const Net net = marked_net(mpu), undivided = marked_net(mpu);
    const auto forward = [](const Net& of) {
      const Tensor x = numbers({3, 4}).to(torch::kFloat);
      const Tensor h = at::linear(x, of.in.to(torch::kFloat), of.in_bias.to(torch::kFloat));
      return at::addmm(numbers({4}).to(torch::kFloat), h, of.out.to(torch::kFloat).t());
    };
    loss_of(forward(undivided)).backward();
    const auto split = std::make_shared<SplitBackward>();
    Tensor loss;
    {
      const SplitBackward::Scope scope(split);
      loss = loss_of(forward(net));
    }
    {
      const RecordedNodes nodes;
      loss.backward();
      EXPECT_EQ(nodes.count("OsloUnmark"), 0);
    }
    EXPECT_EQ(split->left(), 2u);
    const RecordedNodes nodes;
    split->run();
    EXPECT_EQ(nodes.count("OsloLinearWeightBackward"), 2);
    for (const auto& [own, other] :
         {std::pair(net.in, undivided.in), std::pair(net.in_bias, undivided.in_bias),
          std::pair(net.out, undivided.out)}) {
      EXPECT_TRUE(torch::equal(oslo::local_tensor(own.grad()), oslo::local_tensor(other.grad())));
    }
  });
}

TEST(LinearHalves, KeepTheInputAndTheGradientAndFreeThem) {
  on_ranks(1, [](const oslo::MPU& mpu) {
    // At size 1 nothing is cut; a stage's parameters are marked all the same.
    const auto context =
        context_of(std::make_shared<const oslo::Mesh>(std::vector{mpu.tensor_group()}));
    context->set_residence(std::make_shared<oslo::StageResidence>(oslo::StageRanks()));
    const auto layout = std::make_shared<oslo::Layout>(context, oslo::StageSet::of(0));
    const Tensor weight = leaf(numbers({3, 4})), first = leaf(numbers({4, 4}, 0.4));
    oslo::mark_parameter(weight, layout, "w");
    const auto split = std::make_shared<SplitBackward>();
    Tensor input = first * 2.0, loss;
    const auto memory = input.storage().getWeakStorageImpl();
    oslo::WeakNodePtr graph{oslo::NodePtr()};
    {
      const SplitBackward::Scope scope(split);
      loss = oslo::local_tensor(at::linear(input, weight).sin().sum());
      graph = input.grad_fn();
    }
    input = Tensor();
    loss.backward();
    loss = Tensor();
    EXPECT_TRUE(graph.expired());
    EXPECT_FALSE(memory.expired());
    split->run();
    EXPECT_TRUE(memory.expired());
    EXPECT_TRUE(weight.grad().defined());
  });
}

TEST(LinearHalves, CheckThatWhatTheyKeepWasNotWritten) {
  on_ranks(2, [](const oslo::MPU& mpu) {
    const Net net = marked_net(mpu);
    const auto split = std::make_shared<SplitBackward>();
    const Tensor x = leaf(numbers({3, 4})) * 1.0;
    {
      const SplitBackward::Scope scope(split);
      oslo::local_tensor(at::linear(x, net.in)).sum().backward();
    }
    x.detach().add_(1.0);
    EXPECT_THAT(error_of([&] { split->run(); }), HasSubstr("modified by an inplace operation"));
  });
}

TEST(LinearHalves, AreNotForGradientsOfGradients) {
  on_ranks(2, [](const oslo::MPU& mpu) {
    const Net net = marked_net(mpu);
    const auto split = std::make_shared<SplitBackward>();
    const SplitBackward::Scope scope(split);
    const auto loss = [&] { return oslo::local_tensor(at::linear(numbers({3, 4}), net.in)).sum(); };
    EXPECT_THAT(error_of([&] { loss().backward({}, std::nullopt, /*create_graph=*/true); }),
                HasSubstr("create_graph"));
    EXPECT_THAT(error_of([&] { loss().backward({}, /*retain_graph=*/true); }),
                HasSubstr("retain_graph"));
    Tensor late;
    {
      const SplitBackward::Scope inner(std::make_shared<SplitBackward>());
      late = loss();
    }
    EXPECT_EQ(SplitBackward::current(), split);
    EXPECT_THAT(error_of([&] { late.backward(); }), HasSubstr("keep it until its run()"));
  });
}

struct Holder : torch::nn::Module {
  explicit Holder(Net own) : net(std::move(own)) {
    register_parameter("table", net.table);
    register_parameter("norm", net.norm);
    register_parameter("in", net.in);
    register_parameter("in_bias", net.in_bias);
    register_parameter("out", net.out);
  }
  Tensor forward(const Tensor& input) { return net.forward(input); }
  Net net;
};

TEST(LinearHalves, GiveReplicasOneGradientAParameter) {
  oslo::run_as_threads(4, [](oslo::World world) {
    const oslo::MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(2));
    const auto model = std::make_shared<Holder>(marked_net(mpu));
    oslo::DistributedDataParallel<Holder> ddp(model, mpu.get_data_parallel_group());
    const Net plain = plain_net();
    loss_of(plain.forward(tokens())).div(2.0).backward();
    std::vector<int> fired(5, 0);
    const auto parameters = model->net.parameters();
    for (size_t i = 0; i < parameters.size(); ++i) {
      parameters[i].register_hook([&fired, i](const Tensor&) { ++fired[i]; });
    }
    const auto calls = [&] { return mpu.data_group()->ledger().total("all_reduce").calls; };
    for (int step = 1; step <= 2; ++step) {
      const auto split = std::make_shared<SplitBackward>();
      const int64_t before = calls();
      {
        const SplitBackward::Scope scope(split);
        const Tensor part = tokens().tensor_split(2)[mpu.data_group()->rank()];
        loss_of(ddp.forward(part)).backward();
      }
      EXPECT_EQ(calls(), before);
      EXPECT_EQ(fired, std::vector<int>(5, step - 1));
      split->run();
      EXPECT_EQ(calls() - before, 1);  // one bucket
      EXPECT_EQ(fired, std::vector<int>(5, step));
      const auto expected = plain.parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        expect_close(parameters[i].grad(), expected[i].grad(), "replicas");
      }
      model->zero_grad();
    }
  });
}

}  // namespace
}  // namespace linear_node
