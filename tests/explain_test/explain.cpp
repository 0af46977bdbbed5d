// Explanations against the ledgers of real steps, and against each other.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/explain_test/explained.h"
#include "tests/joined_sums_test/parallel_block.h"
#include "tests/models/bert.h"
#include "tests/models/convnext.h"
#include "tests/models/gpt2.h"
#include "tests/models/unet.h"
#include "tests/support/error_of.h"

namespace explain_test {
namespace {

using oslo::Explanation;
using oslo::run_as_threads;
using oslo::World;
using oslo::test::error_of;
using oslo::test::expect_contains;
using parity::make_seeded;

using Forward = std::function<Tensor(const Tensor&)>;
using Loss = std::function<Tensor(const Forward&, const Tensor&)>;

struct Grid {
  int tensor = 2, data = 1;
  std::string more = {};              ///< of the config: ", \"strict\": true"
  std::vector<oslo::Axis> axes = {};  ///< in place of the sizes
  bool as_example = true;             ///< what shapes show is all of a step
};

const std::vector<Grid> kGrids{{2, 1}, {3, 1}, {2, 2}};

/// The example is the forward and its loss, as the step has it, so that both must count the same:
/// by collective and operator, and call by call.
template <typename Make>
void expect_explained(const Make& make, const Tensor& batch, const Loss& loss, const Grid& grid) {
  run_as_threads(grid.tensor * grid.data, [&](World world) {
    at::set_num_threads(1);
    auto model = make_seeded(3, make);
    model->to(torch::kFloat64);
    const int replica = world.rank() / grid.tensor;
    const Tensor own = batch.tensor_split(grid.data)[replica];
    oslo::InitializeOptions how;
    how.world = world;
    how.axes = grid.axes;
    how.example_inputs = [&] { loss([&](const Tensor& x) { return model->forward(x); }, own); };
    const int size = grid.axes.empty() ? grid.tensor : 1;
    std::string config = parity::tensor_parallel(size);
    config.insert(config.size() - 1, grid.more);
    auto parallel = oslo::initialize(model, oslo::Config::parse(config), how);
    const oslo::MPU& mpu = parallel.mpu();
    const Explanation example = parallel.explain();
    oslo::DistributedDataParallel<decltype(model)> ddp(model, mpu.get_data_parallel_group());
    const auto step = [&] {
      loss([&](const Tensor& x) { return ddp.forward(x); }, own).backward();
    };
    step();  // buckets are made anew behind the first one
    clear(mpu);
    step();
    const Book counted = book_of(mpu);
    clear(mpu);
    const Explanation recorded = parallel.explain(step);
    EXPECT_EQ(text_of(book_of(recorded)), text_of(counted));
    EXPECT_EQ(text_of(book_of(mpu)), text_of(counted));  // it adds nothing of its own
    for (const auto& move : recorded.outside) EXPECT_TRUE(move.backward) << move.rule;
    EXPECT_EQ(recorded.outside.empty(), grid.data == 1 && grid.as_example);
    if (grid.as_example && world.rank() % grid.tensor == 0) {  // as which shapes are seen
      Book of_layers = counted;
      std::erase_if(of_layers, [](const auto& line) { return std::get<0>(line.first) == "data"; });
      EXPECT_EQ(text_of(book_of(example)), text_of(of_layers)) << example.to_string();
      EXPECT_EQ(lines_of(example), lines_of(recorded));
      EXPECT_GT(example.calls.size(), 10u);
      EXPECT_TRUE(example.outside.empty());
    }
  });
}

Tensor cross_entropy(const Tensor& logits, const Tensor& target) {
  return torch::nn::functional::cross_entropy(logits.view({-1, logits.size(-1)}),
                                              target.reshape({-1}));
}

class Explained : public testing::TestWithParam<Grid> {};

TEST_P(Explained, Gpt2) {
  const models::GPT2Options options;
  const Tensor tokens = make_seeded(5, [&] { return torch::randint(options.vocabulary, {4, 11}); });
  expect_explained(
      [&] { return models::GPT2(options); }, tokens,
      [](const Forward& forward, const Tensor& own) { return cross_entropy(forward(own), own); },
      GetParam());
}

TEST_P(Explained, Bert) {
  const models::BertOptions options;
  const Tensor tokens = make_seeded(5, [&] {
    return torch::randint(1, options.vocabulary, {4, 9});
  });
  expect_explained([&] { return models::Bert(options); }, tokens,
                   [&](const Forward& forward, const Tensor& own) {
                     const Tensor logits = forward(own);
                     return cross_entropy(logits, own.slice(1, 0, 1) % options.labels);
                   },
                   GetParam());
}

TEST_P(Explained, ConvNeXt) {
  const Tensor images = make_seeded(5, [] { return torch::randn({4, 3, 16, 16}, torch::kDouble); });
  expect_explained(
      [] { return models::convnext::ConvNeXt(); }, images,
      [](const Forward& forward, const Tensor& own) { return forward(own).square().mean(); },
      GetParam());
}

/// With its second input made from the first.
struct UNetOfImagesImpl : torch::nn::Module {
  UNetOfImagesImpl() : net(register_module("net", models::unet::UNet())) {}
  Tensor forward(const Tensor& image) { return net(image, image.flatten(1).slice(1, 0, 6)); }
  models::unet::UNet net;
};
TORCH_MODULE(UNetOfImages);

/// Convolutions that read one value share its gradient's all-reduce, though shapes have no graph.
TEST_P(Explained, UNet) {
  const Tensor images = make_seeded(5, [] { return torch::randn({4, 2, 8, 8}, torch::kDouble); });
  expect_explained(
      [] { return UNetOfImages(); }, images,
      [](const Forward& forward, const Tensor& own) { return forward(own).square().mean(); },
      GetParam());
}

TEST_P(Explained, BranchesThatEndInOneSum) {
  const Tensor x = make_seeded(5, [] { return torch::randn({4, 5, 12}, torch::kDouble); });
  expect_explained(
      [] { return joined_sums::Stack(joined_sums::Options(), 2); }, x,
      [](const Forward& forward, const Tensor& own) { return forward(own).square().mean(); },
      GetParam());
}

INSTANTIATE_TEST_SUITE_P(Grids, Explained, testing::ValuesIn(kGrids), [](const auto& info) {
  return c10::str("tp", info.param.tensor, "dp", info.param.data);
});

void expect_gpt2(const Grid& grid, int64_t hidden = 24) {
  models::GPT2Options options;
  options.vocabulary = 35;
  options.hidden = hidden;
  const Tensor tokens = make_seeded(5, [&] { return torch::randint(options.vocabulary, {4, 11}); });
  expect_explained(
      [&] { return models::GPT2(options); }, tokens,
      [](const Forward& forward, const Tensor& own) { return cross_entropy(forward(own), own); },
      grid);
}

TEST(ExplainedPlans, SequenceParallel) {
  expect_gpt2({.tensor = 3, .more = R"(, "plan": {
      "wte": "vocab scatter=-2", "h.*.attn.c_attn": "column blocks=3",
      "h.*.attn.c_proj": "row scatter=-2", "h.*.c_fc": "column", "h.*.c_proj": "row scatter=-2"})"});
}

/// Weights and inputs that are gathered by plan are no surprise.
TEST(ExplainedPlans, TwoDimensional) {
  expect_gpt2({.tensor = 4,
               .more = R"(, "strict": true, "plan": {
      "wte": "row: replicate input=0; column: column", "wpe": "column: column",
      "h.*.attn.c_attn": "row: row; column: column blocks=3",
      "h.*.attn.c_proj": "row: row; column: column",
      "h.*.c_fc": "row: row; column: column", "h.*.c_proj": "row: row; column: column"})",
               .axes = {{"row", 2}, {"column", 2}}});
}

TEST(ExplainedPlans, FusedKernels) {
  expect_gpt2({.more = R"(, "kernel_fusion": true)"});
}

TEST(ExplainedPlans, Strict) {
  expect_gpt2({.more = R"(, "strict": true)"});
}

/// What is computed again moves again, which a run on shapes does not show.
TEST(ExplainedPlans, Recomputed) {
  expect_gpt2({.more = R"(, "activation_checkpoint": {"enabled": true})", .as_example = false});
}

/// The schedule runs the model on threads of its own: what moves is counted all the same.
TEST(ExplainedPlans, OnStages) {
  const Tensor x = make_seeded(5, [] { return torch::randn({4, 6}, torch::kDouble); });
  run_as_threads(4, [&](World world) {
    at::set_num_threads(1);
    auto model = make_seeded(3, [] {
      return torch::nn::Sequential(torch::nn::Linear(6, 10), torch::nn::Tanh(),
                                   torch::nn::Linear(10, 6), torch::nn::Linear(6, 3));
    });
    model->to(torch::kDouble);
    oslo::InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { model->forward(x); };
    auto parallel = oslo::initialize(model, oslo::Config::parse(R"({"model_parallelism": {
        "enable": true, "tensor_parallel_size": 2, "pipeline_parallel_size": 2}})"),
                                     how);
    EXPECT_THAT(parallel.explain().note, testing::HasSubstr("pipeline stages"));
    oslo::PipelineSchedule schedule(parallel, oslo::PipelineOptions().num_microbatches(2));
    const auto step = [&] {
      schedule.forward_backward_step({x}, [&](const std::vector<Tensor>& micro) {
        return model->forward(micro[0]).square().mean();
      });
    };
    step();
    clear(parallel.mpu());
    step();
    const Book counted = book_of(parallel.mpu());
    EXPECT_EQ(text_of(book_of(parallel.explain(step))), text_of(counted));
  });
}

/// A run on shapes sees no casts, which halve what moves.
TEST(ExplainedPlans, HalfPrecisionIsRecorded) {
  run_as_threads(2, [](World world) {
    at::set_num_threads(1);
    models::GPT2 model = make_seeded(3, [] { return models::GPT2(models::GPT2Options()); });
    const Tensor tokens = torch::zeros({2, 5}, torch::kLong);
    oslo::InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { model->forward(tokens); };
    auto parallel = oslo::initialize(model, oslo::Config::parse(R"({"amp": {"enabled": true},
        "model_parallelism": {"enable": true, "tensor_parallel_size": 2}})"),
                                     how);
    expect_contains(error_of([&] { parallel.explain(); }), {"'amp'", "parallel.explain([&] {"});
    clear(parallel.mpu());
    const Explanation recorded = parallel.explain([&] { model->forward(tokens).sum().backward(); });
    EXPECT_EQ(text_of(book_of(recorded)), text_of(book_of(parallel.mpu())));
    EXPECT_THAT(recorded.to_json().dump(), testing::HasSubstr("BFloat16"));
  });
}

}  // namespace
}  // namespace explain_test
