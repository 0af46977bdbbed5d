// LSTM, GRU and RNN of torch::nn on pipeline stages, whole and cut by hidden unit, beside one
// device: losses, every gradient and weights after steps, with the masks of their dropout and of
// one behind them, which the ranks of all stages have to draw alike.
#include <gmock/gmock.h>

#include "tests/recurrent_layers_test/recurrent_net.h"
#include "tests/support/error_of.h"
#include "tests/support/own_draws.h"
#include "tests/support/pipeline_parity.h"

namespace recurrent_test {
namespace {

using pipeline_parity::Grid;
using pipeline_parity::Trial;

/// The layer between others of its stage, which meet its results at once, and one of the last
/// stage.
struct StagedImpl : torch::nn::Module {
  explicit StagedImpl(const Variant& variant) {
    before = register_module("before", torch::nn::Linear(kInputs, kInputs));
    net = register_module("net", Net(variant));
    const int64_t wide = variant.projected > 0 ? variant.projected : variant.hidden;
    gate = register_module("gate", torch::nn::Linear(kInputs, wide * variant.directions()));
    after = register_module("after", torch::nn::Linear(kTags, 3));
  }

  Tensor loss(const Tensor& rows) {
    const bool batch_first = net->variant.batch_first;
    Tensor h = torch::tanh(before(rows));
    if (!batch_first) h = h.transpose(0, 1);
    const Tensors results = net->forward(h);
    Tensor loss = (results[0] * torch::sigmoid(gate(h))).pow(2).mean();
    for (size_t i = 1; i + 1 < results.size(); ++i) loss = loss + results[i].pow(2).mean();
    return loss + after(torch::dropout(results.back(), 0.3, is_training())).pow(2).mean();
  }

  torch::nn::Linear before{nullptr}, gate{nullptr}, after{nullptr};
  Net net{nullptr};
};
TORCH_MODULE(Staged);

std::string config_of(const Variant& variant, const Grid& grid, int stage) {
  const std::string head = variant.both ? "row blocks=2" : "row";
  const std::string plan =
      variant.projected > 0 ? "{}" : R"({"net.layer": "column", "net.head": ")" + head + "\"}";
  const std::string stages = grid.pipeline == 1
                                 ? ""
                                 : c10::str(R"(, "stages": {"before": 0, "net": )", stage,
                                            R"(, "gate": )", stage, R"(, "after": 1})");
  return c10::str(R"({"model_parallelism": {"enable": true, "tensor_parallel_size": )", grid.tensor,
                  R"(, "pipeline_parallel_size": )", grid.pipeline, R"(}, "plan": )", plan, stages,
                  "}");
}

void expect_like_one_device(const Variant& variant, const Grid& grid, int stage) {
  SCOPED_TRACE(c10::str(variant.name, ", ", grid.name(), ", stage ", stage));
  Trial trial;
  trial.grid = grid;
  trial.micro_batches = trial.steps = 2;
  trial.batch_coupled = true;  // both draw a mask for each micro-batch
  trial.evaluates = true;
  trial.config = config_of(variant, grid, stage);
  pipeline_parity::expect_parity(
      trial, [&] { return Staged(variant); },
      [](int step) {
        return Tensors{numbers({4, kSteps, kInputs}, step)};
      },
      [](auto& model, const Tensors& micro) {
        const auto seed = static_cast<uint64_t>(micro[0].sum().template item<double>() * 1e6);
        const oslo::test::OwnDraws draws(seed);
        return model->loss(micro[0]);
      });
}

/// What a layer may be told.
std::vector<Variant> variants_of(Kind kind, const std::string& name) {
  std::vector<Variant> all;
  for (const bool both : {false, true}) {
    for (const auto& [layers, dropout] : {std::pair{1, 0.}, std::pair{2, 0.}, std::pair{2, 0.4}}) {
      Variant variant{name, kind, layers, both};
      variant.batch_first = both == (dropout > 0);
      variant.bias = layers == 1 || both;
      variant.dropout = dropout;
      variant.name +=
          c10::str(", ", layers, " layers, dropout ", dropout, both ? ", both ways" : "");
      all.push_back(variant);
      if (kind != Kind::lstm) continue;
      variant.projected = 3;
      variant.name += ", projected";
      all.push_back(variant);
    }
  }
  return all;
}

class StagedRecurrentLayers : public testing::TestWithParam<std::pair<Kind, const char*>> {};

TEST_P(StagedRecurrentLayers, EveryVariantTrainsAsOnOneDevice) {
  for (const Variant& variant : variants_of(GetParam().first, GetParam().second)) {
    expect_like_one_device(variant, {1, 2, 1}, 0);
    for (const int stage : {0, 1}) {
      expect_like_one_device(variant, {1, 1, 2}, stage);
      expect_like_one_device(variant, {1, 2, 2}, stage);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, StagedRecurrentLayers,
                         testing::Values(std::pair{Kind::lstm, "lstm"}, std::pair{Kind::gru, "gru"},
                                         std::pair{Kind::tanh, "tanh"},
                                         std::pair{Kind::relu, "relu"}),
                         [](const auto& info) { return std::string(info.param.second); });

/// Its states are of another size than its units: it is not cut, on any grid.
TEST(StagedRecurrentLayers, AProjectionIsRefusedByNameOnEveryRank) {
  Variant variant{"projected", Kind::lstm, 2};
  variant.projected = 3;
  for (const Grid& grid : {Grid{1, 2, 1}, Grid{1, 2, 2}}) {
    oslo::run_as_threads(grid.size(), [&](oslo::World world) {
      Staged model = oslo::test::make_seeded(7, [&] { return Staged(variant); });
      auto config = oslo::Config::parse(config_of(variant, grid, 1));
      config.set(R"(plan={"net.layer": "column"})");
      EXPECT_THAT(
          oslo::test::error_of([&] { oslo::initialize(model, config, oslo::test::in(world)); }),
          testing::AllOf(testing::HasSubstr("net.layer"), testing::HasSubstr("proj_size"),
                         testing::HasSubstr("use replicate")));
    });
  }
}

}  // namespace
}  // namespace recurrent_test
