// LSTM, GRU and RNN of torch::nn, cut by hidden unit, against one device: results, every gradient,
// weights after steps, and what a step moves.
#include <gmock/gmock.h>

#include "parallelizers/placement/carrier/access.h"
#include "tests/recurrent_layers_test/recurrent_net.h"
#include "tests/support/bf16.h"
#include "tests/support/own_draws.h"

namespace recurrent_test {
namespace {

using parity::expect_close;

/// One step's results and the gradients of what was handed in.
struct Step {
  Tensors results, given;
};

Step step(Net& net, double phase) {
  Step made;
  made.given.push_back(input_of(net->variant, phase).set_requires_grad(true));
  if (net->variant.states) {
    made.given.push_back(state_of(net->variant, phase + 1).set_requires_grad(true));
    made.given.push_back(state_of(net->variant, phase + 2).set_requires_grad(true));
  }
  const oslo::test::OwnDraws draws(1, /*each_anew=*/true);
  made.results = net->variant.states ? net->forward(made.given[0], made.given[1], made.given[2])
                                     : net->forward(made.given[0]);
  loss_of(made.results).backward();
  return made;
}

void expect_like_one_device(const Variant& variant, int ranks) {
  oslo::run_as_threads(ranks, [&](oslo::World world) {
    at::set_num_threads(1);
    const auto make = [&] { return Net(variant); };
    Net reference = oslo::test::make_seeded(5, make), net = oslo::test::make_seeded(5, make);
    reference->to(torch::kFloat64);
    net->to(torch::kFloat64);
    const torch::optim::AdamWOptions adam(1e-2);
    torch::optim::AdamW one(reference->parameters(), adam), many(net->parameters(), adam);
    const auto parallel = oslo::initialize(net, config_of(variant, ranks), oslo::test::in(world));
    for (const auto& item : net->named_parameters()) {
      if (item.key() == "head.bias") continue;
      EXPECT_TRUE(oslo::is_placed(item.value())) << item.key();
      EXPECT_LT(item.value().numel(), reference->named_parameters()[item.key()].numel());
    }
    for (int i = 0; i < 2; ++i) {
      one.zero_grad();
      many.zero_grad();
      const Step expected = step(reference, i), actual = step(net, i);
      for (size_t r = 0; r < expected.results.size(); ++r) {
        expect_close(oslo::full_tensor(actual.results[r]), expected.results[r],
                     c10::str(variant.name, ", result ", r));
        EXPECT_EQ(actual.results[r].strides(), expected.results[r].strides()) << variant.name;
      }
      for (size_t g = 0; g < expected.given.size(); ++g) {
        if (!expected.given[g].grad().defined()) continue;  // c0 of other layers than LSTM
        expect_close(actual.given[g].grad(), expected.given[g].grad(),
                     c10::str(variant.name, ", gradient of input ", g));
      }
      parity::expect_gradients(*net, *reference);
      one.step();
      many.step();
    }
    parity::expect_weights(*net, *reference);
    EXPECT_TRUE(parallel.plan().gathers.empty()) << parallel.plan().to_string();
    net->eval();
    reference->eval();
    const torch::NoGradGuard no_grad;
    expect_close(oslo::full_tensor(net->forward(input_of(variant, 9))[0]),
                 reference->forward(input_of(variant, 9))[0], variant.name + ", evaluation");
  });
}

std::vector<Variant> variants() {
  std::vector<Variant> all;
  const auto add = [&](const std::string& name, const auto& change) {
    for (const auto& [kind, text] :
         {std::pair{Kind::lstm, "lstm"}, std::pair{Kind::gru, "gru"}, std::pair{Kind::tanh, "tanh"},
          std::pair{Kind::relu, "relu"}}) {
      Variant variant{std::string(text) + ", " + name, kind};
      change(variant);
      all.push_back(variant);
    }
  };
  add("plain", [](Variant&) {});
  add("batch first, states given", [](Variant& v) { v.batch_first = v.states = true; });
  add("two layers, no biases, 7 units", [](Variant& v) {
    v.layers = 2;
    v.bias = false;
    v.hidden = 7;
  });
  add("both ways, states given", [](Variant& v) { v.both = v.states = true; });
  add("three layers both ways, dropout", [](Variant& v) {
    v.layers = 3;
    v.both = v.batch_first = true;
    v.dropout = 0.4;
  });
  add("packed", [](Variant& v) { v.packed = true; });
  add("packed, two layers both ways, dropout, states given", [](Variant& v) {
    v.packed = v.both = v.batch_first = v.states = true;
    v.layers = 2;
    v.dropout = 0.4;
    v.hidden = 7;
  });
  return all;
}

class RecurrentLayers : public testing::TestWithParam<int> {};

TEST_P(RecurrentLayers, EveryVariantIsLikeOneDevice) {
  for (const Variant& variant : variants()) {
    SCOPED_TRACE(variant.name);
    expect_like_one_device(variant, GetParam());
  }
}
INSTANTIATE_TEST_SUITE_P(Ranks, RecurrentLayers, testing::Values(2, 3));

using oslo::Traffic;

/// What each collective of the tensor group moved while `action` ran.
std::map<std::string, Traffic> moved(const oslo::ParallelModel& parallel,
                                     const std::function<void()>& action) {
  oslo::Ledger& ledger = parallel.mpu().tensor_group()->ledger();
  ledger.clear();
  action();
  std::map<std::string, Traffic> all;
  for (const oslo::LedgerEntry& entry : ledger.entries()) all[entry.operation] += entry.traffic;
  return all;
}

Traffic of_doubles(int64_t calls, int64_t elements) {
  return {calls, elements, 8 * elements};
}

/// A gather of [B, directions x H] a step but for the first, one of [T, B, directions x H] between
/// layers, the reduce-scatters of their gradients, and the head's all-reduce.
TEST_P(RecurrentLayers, AStepMovesOneGatherEachWay) {
  const int ranks = GetParam();
  for (const Variant& variant :
       {Variant{"lstm"}, Variant{"two layers", Kind::lstm, 2},
        Variant{"both ways", Kind::gru, 2, true}, Variant{"rnn", Kind::relu}}) {
    oslo::run_as_threads(ranks, [&](oslo::World world) {
      Net net = oslo::test::make_seeded(5, [&] { return Net(variant); });
      net->to(torch::kFloat64);
      const auto parallel = oslo::initialize(net, config_of(variant, ranks), oslo::test::in(world));
      const Tensor x = input_of(variant, 1);
      const int64_t d = variant.directions(), h = variant.hidden;
      const int64_t own = h / ranks + (world.rank() < h % ranks ? 1 : 0);
      const int64_t calls = variant.layers * (kSteps - 1) + variant.layers - 1;
      const int64_t rows =
          d * kBatch * (variant.layers * (kSteps - 1) + kSteps * (variant.layers - 1));
      const int64_t tags = 2 * (ranks - 1) * kSteps * kBatch * kTags / ranks;
      Tensor loss;
      EXPECT_EQ(moved(parallel, [&] { loss = net->forward(x).back().sum(); }),
                (std::map<std::string, Traffic>{{"all_gather", of_doubles(calls, rows * (h - own))},
                                                {"all_reduce", of_doubles(1, tags)}}))
          << variant.name;
      EXPECT_EQ(moved(parallel, [&] { loss.backward(); }),
                (std::map<std::string, Traffic>{
                    {"reduce_scatter", of_doubles(calls, rows * own * (ranks - 1))}}))
          << variant.name;
    });
  }
}

/// Truncated backpropagation: the next stretch begins from states that are cut.
TEST_P(RecurrentLayers, StatesAreCarriedCut) {
  const Variant variant{"lstm", Kind::lstm, 2};
  oslo::run_as_threads(GetParam(), [&](oslo::World world) {
    const auto make = [&] { return Net(variant); };
    Net reference = oslo::test::make_seeded(5, make), net = oslo::test::make_seeded(5, make);
    reference->to(torch::kFloat64);
    net->to(torch::kFloat64);
    const auto parallel =
        oslo::initialize(net, config_of(variant, GetParam()), oslo::test::in(world));
    const auto train = [&](Net& each) {
      Tensors state = each->forward(input_of(variant, 0));
      loss_of(state).backward();
      state = each->forward(input_of(variant, 1), state[1].detach(), state[2].detach());
      state = each->forward(input_of(variant, 2), state[1], state[2]);
      loss_of(state).backward();
      return state;
    };
    const Tensors actual = train(net), expected = train(reference);
    EXPECT_TRUE(oslo::is_placed(actual[1]));
    EXPECT_TRUE(oslo::is_placed(actual[2]));
    expect_close(oslo::full_tensor(actual[2]), expected[2], "cells");
    parity::expect_gradients(*net, *reference);
    EXPECT_TRUE(parallel.plan().gathers.empty()) << parallel.plan().to_string();
    // One gather a step now, and as before one between the layers.
    const torch::NoGradGuard no_grad;
    EXPECT_EQ(moved(parallel,
                    [&] { net->lstm(input_of(variant, 3), std::make_tuple(actual[1], actual[2])); })
                  .at("all_gather")
                  .calls,
              2 * kSteps + 1);
  });
}

/// Whole weights, sequences of the batch on different ranks: dropout draws as on one device.
TEST_P(RecurrentLayers, DropoutBesideACutBatch) {
  oslo::run_as_threads(GetParam(), [&](oslo::World world) {
    const oslo::MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(GetParam()));
    Net net = oslo::test::make_seeded(5, [] {
      return Net(Variant{"", Kind::gru, 2, true, true, false, false, false, 0.5});
    });
    net->to(torch::kFloat64);
    const Tensor x = numbers({kSteps, 5, kInputs}, 1);
    const auto run = [&](const Tensor& input) {
      const oslo::test::OwnDraws draws(1, /*each_anew=*/true);
      net->zero_grad();
      const Tensor y = std::get<0>(net->gru(input));
      loss_of({y}).backward();
      return std::pair{y, net->gru->parameters()[1].grad().clone()};
    };
    const auto expected = run(x);
    const auto actual = run(oslo::distribute(x, mpu.tensor_mesh(), {oslo::Placement::shard(1)}));
    EXPECT_TRUE(oslo::is_placed(actual.first));
    expect_close(oslo::full_tensor(actual.first), expected.first, "states");
    expect_close(actual.second, expected.second, "gradient of a weight");
    EXPECT_EQ(context_of(mpu.tensor_mesh())->gathers().calls(), 0);
  });
}

/// More ranks than units, a batch of one, one step.
TEST(RecurrentLayers, RanksWithoutUnits) {
  for (Variant variant : {Variant{"lstm"}, Variant{"gru", Kind::gru}, Variant{"rnn", Kind::tanh}}) {
    variant.hidden = 2;
    variant.layers = 2;
    expect_like_one_device(variant, 3);
  }
}

/// `to` resets the list of weights that the layer keeps beside its parameters.
TEST(RecurrentLayers, OtherTypes) {
  const Variant variant{"gru", Kind::gru, 2, true};
  oslo::run_as_threads(2, [&](oslo::World world) {
    const auto make = [&] { return Net(variant); };
    Net reference = oslo::test::make_seeded(5, make), net = oslo::test::make_seeded(5, make);
    const auto parallel = oslo::initialize(net, config_of(variant, 2), oslo::test::in(world));
    net->to(torch::kFloat64);
    reference->to(torch::kFloat64);
    const Tensor x = input_of(variant, 1);
    expect_close(oslo::full_tensor(net->forward(x).back()), reference->forward(x).back(), "double");
    net->to(torch::kFloat32);
    reference->to(torch::kFloat32);
    const Tensor narrow = x.to(torch::kFloat32);
    expect_close(oslo::full_tensor(net->forward(narrow).back()), reference->forward(narrow).back(),
                 "float", {1e-4, 1e-5});
    parallel.check();
  });
}

/// Results have one device's types, and numbers that are as near to those of floats.
TEST(RecurrentLayers, UnderAutocast) {
  for (const Kind kind : {Kind::lstm, Kind::gru, Kind::tanh}) {
    const Variant variant{"", kind, 2};
    oslo::run_as_threads(2, [&](oslo::World world) {
      const auto make = [&] { return Net(variant); };
      Net reference = oslo::test::make_seeded(5, make), net = oslo::test::make_seeded(5, make);
      const auto parallel = oslo::initialize(net, config_of(variant, 2), oslo::test::in(world));
      const Tensor x = input_of(variant, 1).to(torch::kFloat32);
      const Tensors exact = reference->forward(x);
      const oslo::test::Autocast autocast;
      const Tensors expected = reference->forward(x), actual = net->forward(x);
      for (size_t i = 0; i < expected.size(); ++i) {
        oslo::test::expect_rounded_alike(actual[i], expected[i], exact[i], 2,
                                         c10::str(static_cast<int>(kind), ", result ", i));
      }
    });
  }
}

}  // namespace
}  // namespace recurrent_test
