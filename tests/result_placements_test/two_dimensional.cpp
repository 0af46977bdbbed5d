// The untouched GPT-2 on a grid of (row, column): weights are cut both ways, the stream by batch
// and by features. The tokens come whole: the table's look-up cuts their batch.
#include <map>

#include "parallelizers/placement/carrier/mark.h"
#include "tests/models/gpt2.h"
#include "tests/support/parity.h"

namespace result_placements {
namespace {

using oslo::AxisUse;
using oslo::Placement;
using torch::Tensor;

/// How a parameter lies, an entry for row and one for column, and which is the outer one.
struct OnGrid {
  std::vector<Placement> placements;
  std::vector<int> order = {0, 1};
};

bool has(const std::string& name, const char* part) {
  return name.find(part) != std::string::npos;
}

/// Features of the stream are cut by column, and so is what belongs to them; a weight's input
/// features by row, its bias by row inside its columns.
OnGrid place(const std::string& name) {
  const int64_t blocks = has(name, "c_attn") ? 3 : 1;
  if (has(name, "ln_")) return {{Placement::replicate(), Placement::shard(0)}};
  if (has(name, "wte") || has(name, "wpe")) return {{Placement::replicate(), Placement::shard(1)}};
  if (has(name, "bias")) return {{Placement::shard(0), Placement::shard(0, blocks)}, {1, 0}};
  return {{Placement::shard(1), Placement::shard(0, blocks)}};
}

void cut_on_grid(torch::nn::Module& model, const oslo::MeshPtr& mesh) {
  for (const auto& item : model.named_parameters()) {
    const OnGrid lies = place(item.key());
    const Tensor& parameter = item.value();
    mark_parameter(parameter,
                   std::make_shared<oslo::Layout>(
                       make_layout(mesh, lies.placements, parameter.sizes(), lies.order)),
                   item.key());
    if (!has(item.key(), "wte")) continue;
    AxisUse batch;
    batch.input_dim = 0;
    set_weight_uses(parameter, std::make_shared<oslo::WeightUses>(
                                   oslo::WeightUses{item.key(), {}, {batch, AxisUse{}}}));
  }
}

/// By axis, collective and rule: calls, elements that this rank received.
using Moved = std::map<std::string, std::pair<int64_t, int64_t>>;

Moved moved_over(const oslo::Mesh& mesh) {
  Moved moved;
  for (int axis = 0; axis < mesh.axes(); ++axis) {
    for (const oslo::LedgerEntry& entry : mesh.axis(axis)->ledger().entries()) {
      auto& [calls, elements] =
          moved[c10::str(axis == 0 ? "row" : "column", " ", entry.operation, " ", entry.rule)];
      calls += entry.traffic.calls;
      elements += entry.traffic.elements;
    }
  }
  return moved;
}

void expect_trains_as_one_device(at::IntArrayRef batch, bool fused) {
  oslo::run_as_threads(4, [&](oslo::World world) {
    at::set_num_threads(1);
    models::GPT2Options options;
    options.vocabulary = 35;
    options.hidden = 24;
    options.fused_attention = fused;
    const auto make = [&] { return models::GPT2(options); };
    auto reference = parity::make_seeded(7, make), model = parity::make_seeded(7, make);
    reference->to(torch::kFloat64);
    model->to(torch::kFloat64);
    const oslo::MPU mpu(world, oslo::MpuOptions().tensor_parallel_size(2));
    const auto mesh = std::make_shared<oslo::Mesh>(
        std::vector<std::shared_ptr<oslo::Group>>{mpu.data_group(), mpu.tensor_group()});
    cut_on_grid(*model, mesh);

    const torch::optim::AdamWOptions adam = torch::optim::AdamWOptions(1e-3).eps(1e-5);
    torch::optim::AdamW optimizer(model->parameters(), adam);
    torch::optim::AdamW reference_optimizer(reference->parameters(), adam);
    const auto loss_of = [&](const Tensor& logits, const Tensor& target) {
      return torch::nn::functional::cross_entropy(logits.view({-1, options.vocabulary}),
                                                  target.view({-1}));
    };
    for (int step = 0; step < 3; ++step) {
      const Tensor tokens =
          parity::make_seeded(step, [&] { return torch::randint(options.vocabulary, batch); });
      optimizer.zero_grad();
      reference_optimizer.zero_grad();
      for (int axis = 0; axis < 2; ++axis) mesh->axis(axis)->ledger().clear();
      const Tensor logits = model->forward(tokens);
      EXPECT_LT(oslo::local_tensor(logits).size(0), batch[0]);
      const Tensor loss = loss_of(logits, tokens.flip(1));
      const Tensor expected = loss_of(reference->forward(tokens), tokens.flip(1));
      EXPECT_NEAR(oslo::full_tensor(loss).item<double>(), expected.item<double>(), 1e-9);
      loss.backward();
      expected.backward();
      if (batch[0] % 2 == 0) {
        // Four products a block: w is gathered over rows, x over columns; backward the gradients
        // of both are reduce-scattered. One bias each is gathered over rows.
        const Moved moved = moved_over(*mesh);
        const int64_t layers = options.layers, hidden = options.hidden;
        const int64_t products = 4 * layers;
        const int64_t weights = layers * 12 * hidden * hidden / 4;
        const int64_t inputs = layers * 7 * batch[0] * batch[1] * hidden / 4;
        const std::pair<int64_t, int64_t> of_weights{products, weights},
            of_inputs{products, inputs};
        EXPECT_EQ(moved.at("row all_gather aten::matmul"), of_weights);
        EXPECT_EQ(moved.at("row reduce_scatter aten::matmul"), of_weights);
        EXPECT_EQ(moved.at("column all_gather aten::matmul"), of_inputs);
        EXPECT_EQ(moved.at("column reduce_scatter aten::matmul"), of_inputs);
        const std::pair<int64_t, int64_t> of_biases{products, layers * 9 * hidden / 4};
        EXPECT_EQ(moved.at("row all_gather aten::add_.Tensor"), of_biases);
        EXPECT_EQ(moved.at("row reduce_scatter aten::add_.Tensor"), of_biases);
      }
      parity::expect_gradients(*model, *reference);
      optimizer.step();
      reference_optimizer.step();
    }
    parity::expect_weights(*model, *reference);
  });
}

TEST(TwoDimensional, GPT2FusedAttention) {
  expect_trains_as_one_device({4, 8}, true);
}
TEST(TwoDimensional, GPT2AttentionByHandOddSizes) {
  expect_trains_as_one_device({3, 7}, false);
}

/// The same by an explicit plan: each product is `row: row; column: column`.
TEST(TwoDimensional, GPT2ByThePlan) {
  models::GPT2Options options;
  options.vocabulary = 35;
  options.hidden = 24;
  parity::Setup setup;
  setup.world = 4;
  setup.config = R"({"model_parallelism": {"enable": true}, "plan": {
      "wte": "row: replicate input=0; column: column", "wpe": "column: column",
      "h.*.attn.c_attn": "row: row; column: column blocks=3",
      "h.*.attn.c_proj": "row: row; column: column",
      "h.*.c_fc": "row: row; column: column", "h.*.c_proj": "row: row; column: column"}})";
  setup.tweak = [](oslo::InitializeOptions& how) { how.axes = {{"row", 2}, {"column", 2}}; };
  const std::vector<int64_t> shape = {4, 8};
  const auto batch = [&](int) {
    return parity::Batch{torch::randint(options.vocabulary, shape),
                         torch::randint(options.vocabulary, shape)};
  };
  const auto loss = [&](const Tensor& logits, const Tensor& target) {
    return torch::nn::functional::cross_entropy(logits.view({-1, options.vocabulary}),
                                                target.view({-1}));
  };
  parity::expect_parity(
      setup, [&] { return models::GPT2(options); }, batch, loss,
      [&](const parity::Outcome& outcome) {
        std::map<std::string, int64_t> calls;
        for (const oslo::PlanTraffic& line : outcome.parallel.plan().traffic) {
          if (line.entry.rule != "aten::matmul") continue;
          calls[line.group + " " + line.entry.operation] += line.entry.traffic.calls;
        }
        const int64_t products = 4 * options.layers * setup.steps;
        // The head's table is cut by features alone: its product is a sum over column, and what
        // each row's part of the batch gives of its gradient is summed over row.
        EXPECT_EQ(calls, (std::map<std::string, int64_t>{{"row all_gather", products},
                                                         {"row reduce_scatter", products},
                                                         {"column all_gather", products},
                                                         {"column reduce_scatter", products},
                                                         {"column all_reduce", setup.steps},
                                                         {"row all_reduce", setup.steps}}));
      });
}

}  // namespace
}  // namespace result_placements
