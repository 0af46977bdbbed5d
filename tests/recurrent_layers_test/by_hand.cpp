// Recurrences that a program writes itself: cells in a loop, operators on parameters of its own;
// and what else is done with layers that are cut: checkpoints, verification, layers used twice.
#include <gmock/gmock.h>

#include <algorithm>

#include "checkpoint/load/load_state.h"
#include "parallelizers/placement/carrier/access.h"
#include "tests/recurrent_layers_test/recurrent_net.h"
#include "tests/support/temporary_directory.h"

namespace recurrent_test {
namespace {

using parity::expect_close;

/// A cell step by step over [T, B, I]; the states of all steps.
template <typename Cell>
struct LoopImpl : torch::nn::Module {
  explicit LoopImpl(bool bias) {
    using Options = std::decay_t<decltype(Cell(1, 1)->options)>;
    cell = register_module("cell", Cell(Options(kInputs, 7).bias(bias)));
    head = register_module("head", torch::nn::Linear(7, kTags));
  }
  Tensor forward(const Tensor& x) {
    Tensors states;
    if constexpr (std::is_same_v<Cell, torch::nn::LSTMCell>) {
      std::optional<std::tuple<Tensor, Tensor>> state;
      for (const Tensor& input : x.unbind(0)) {
        state = cell(input, state);
        states.push_back(std::get<0>(*state) + 0.1 * std::get<1>(*state));
      }
    } else {
      Tensor state;
      for (const Tensor& input : x.unbind(0)) states.push_back(state = cell(input, state));
    }
    return head(torch::stack(states));
  }
  Cell cell{nullptr};
  torch::nn::Linear head{nullptr};
};

/// LibTorch's operators on weights that the module registers under names of its own.
struct OwnLstmImpl : torch::nn::Module {
  OwnLstmImpl() {
    const auto add = [&](const char* name, at::IntArrayRef sizes) {
      return register_parameter(name, numbers(sizes, 1).to(torch::kFloat32) * 0.3);
    };
    w_ih = add("w_ih", {20, kInputs});
    w_hh = add("w_hh", {20, 5});
    b_ih = add("b_ih", {20});
    b_hh = add("b_hh", {20});
  }
  Tensor forward(const Tensor& x) {
    const Tensor zeros = torch::zeros({1, x.size(1), 5}, x.options());
    const auto [all, h, c] = torch::lstm(x, {zeros, zeros}, {w_ih, w_hh, b_ih, b_hh}, true, 1, 0.0,
                                         is_training(), false, false);
    return all + h - c;
  }
  Tensor w_ih, w_hh, b_ih, b_hh;
};
TORCH_MODULE(OwnLstm);

/// One layer under two names, each with its own way of being called.
struct TwiceImpl : torch::nn::Module {
  TwiceImpl() {
    layer = register_module("first", torch::nn::GRU(kInputs, kInputs));
    register_module("second", layer);
  }
  Tensor forward(const Tensor& x) { return std::get<0>(layer(x + std::get<0>(layer(x)))); }
  torch::nn::GRU layer{nullptr};
};
TORCH_MODULE(Twice);

std::string config_text(int ranks, const std::string& plan) {
  return R"({"model_parallelism": {"enable": true, "tensor_parallel_size": )" +
         std::to_string(ranks) + R"(}, "plan": )" + plan + "}";
}

template <typename Make>
void expect_like_one_device(int ranks, const std::string& plan, const Make& make,
                            const std::vector<std::string>& cut) {
  parity::Setup setup;
  setup.world = ranks;
  setup.config = config_text(ranks, plan);
  setup.steps = 2;
  parity::expect_parity(
      setup, make,
      [](int step) {
        return parity::Batch{numbers({kSteps, kBatch, kInputs}, step), torch::zeros({1})};
      },
      [](const Tensor& out, const Tensor&) { return loss_of({out}); },
      [&](const parity::Outcome& outcome) {
        const auto parameters = outcome.parallel.module()->named_parameters();
        for (const std::string& name : cut) {
          EXPECT_TRUE(oslo::is_placed(parameters[name])) << name;
        }
        EXPECT_TRUE(outcome.parallel.plan().gathers.empty()) << outcome.parallel.plan().to_string();
      });
}

class RecurrencesByHand : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, RecurrencesByHand, testing::Values(2, 3));

template <typename Cell>
void expect_cells(int ranks) {
  for (const bool bias : {true, false}) {
    std::vector<std::string> cut{"cell.weight_ih", "cell.weight_hh", "head.weight"};
    if (bias) cut.insert(cut.end(), {"cell.bias_ih", "cell.bias_hh"});
    expect_like_one_device(
        ranks, R"({"cell": "column", "head": "row"})",
        [&] { return torch::nn::ModuleHolder<LoopImpl<Cell>>(bias); }, cut);
  }
}

TEST_P(RecurrencesByHand, Cells) {
  expect_cells<torch::nn::LSTMCell>(GetParam());
  expect_cells<torch::nn::GRUCell>(GetParam());
  expect_cells<torch::nn::RNNCell>(GetParam());
}

/// From the second step on a gather of [B, H], and a reduce-scatter of its gradient.
TEST(RecurrencesByHand, ACellMovesOneGatherAStep) {
  oslo::run_as_threads(2, [](oslo::World world) {
    using Loop = torch::nn::ModuleHolder<LoopImpl<torch::nn::LSTMCell>>;
    Loop loop = oslo::test::make_seeded(3, [] { return Loop(true); });
    const auto parallel = oslo::initialize(
        loop, oslo::Config::parse(config_text(2, R"({"cell": "column", "head": "row"})")),
        oslo::test::in(world));
    oslo::Ledger& ledger = parallel.mpu().tensor_group()->ledger();
    ledger.clear();
    const int64_t own = world.rank() == 0 ? 4 : 3, elements = (kSteps - 1) * kBatch * (7 - own);
    Tensor out = loop->forward(torch::ones({kSteps, kBatch, kInputs}));
    EXPECT_EQ(ledger.total("all_gather"), (oslo::Traffic{kSteps - 1, elements, 4 * elements}));
    EXPECT_EQ(ledger.total().calls, kSteps);
    out.sum().backward();
    EXPECT_EQ(ledger.total("reduce_scatter").calls, kSteps - 1);
    EXPECT_EQ(ledger.total().calls, 2 * kSteps - 1);
  });
}

TEST_P(RecurrencesByHand, OperatorsOnParametersOfTheirOwn) {
  expect_like_one_device(GetParam(),
                         R"({"w_ih": "shard(0) blocks=4", "w_hh": "shard(0) blocks=4"})",
                         [] { return OwnLstm(); }, {"w_ih", "w_hh"});
}

TEST_P(RecurrencesByHand, ALayerThatIsUsedTwice) {
  expect_like_one_device(GetParam(), R"({"first": "column"})", [] { return Twice(); },
                         {"first.weight_ih_l0", "second.weight_hh_l0"});
}

Net make_net(const Variant& variant, int seed) {
  return oslo::test::make_seeded(seed, [&] { return Net(variant); });
}

TEST_P(RecurrencesByHand, CheckpointsAreThoseOfTheWholeModel) {
  const Variant variant{"", Kind::lstm, 2, true};
  const oslo::test::TemporaryDirectory folder;
  const std::string parts = folder / "parts", merged = folder / "merged";
  oslo::run_as_threads(GetParam(), [&](oslo::World world) {
    Net saved = make_net(variant, 1), loaded = make_net(variant, 2);
    const auto config = config_of(variant, GetParam());
    const auto one = oslo::initialize(saved, config, oslo::test::in(world));
    one.save_parallelized(parts);
    one.save_parallelized(merged, oslo::SaveOptions().merge_checkpoints(true));
    const auto other = oslo::initialize(loaded, config, oslo::test::in(world));
    other.from_parallelized(parts);
    parity::expect_weights(*loaded, *make_net(variant, 1), {0, 0});
    const Tensor x = input_of(variant, 0).to(torch::kFloat32);
    EXPECT_TRUE(torch::equal(oslo::full_tensor(loaded->forward(x)[0]),
                             oslo::full_tensor(saved->forward(x)[0])));
  });
  Net plain = make_net(variant, 3);
  oslo::load_state(*plain, merged);
  parity::expect_weights(*plain, *make_net(variant, 1), {0, 0});
}

TEST(RecurrencesByHand, VerifyComparesThem) {
  oslo::run_as_threads(2, [](oslo::World world) {
    using Loop = torch::nn::ModuleHolder<LoopImpl<torch::nn::GRUCell>>;
    const auto make = [] { return Loop(true); };
    Loop loop = oslo::test::make_seeded(3, make), reference = oslo::test::make_seeded(3, make);
    const auto parallel = oslo::initialize(
        loop, oslo::Config::parse(config_text(2, R"({"cell": "column", "head": "row"})")),
        oslo::test::in(world));
    const auto found = oslo::verify(parallel, reference, torch::ones({kSteps, kBatch, kInputs}));
    EXPECT_TRUE(found.equal()) << found.to_string();
  });
}

}  // namespace
}  // namespace recurrent_test
