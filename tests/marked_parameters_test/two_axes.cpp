// The untouched GPT-2 with weights cut on two axes at once (2D, as in SUMMA) and on a batch axis
// (ZeRO-3): the rules are those of tensor parallelism, only the placements differ.
#include "parallelizers/placement/carrier/mark.h"
#include "tests/models/gpt2.h"
#include "tests/support/parity.h"

namespace oslo {
namespace {

using torch::Tensor;

/// One placement an axis, for a parameter of this name.
using Placing = std::function<std::vector<Placement>(const std::string&, const Tensor&)>;

bool contains(const std::string& name, const char* part) {
  return name.find(part) != std::string::npos;
}

/// Weights [out over axis 1, in over axis 0], tables by their embedding dimension; norms and biases
/// like the features that they belong to.
std::vector<Placement> grid(const std::string& name, const Tensor&) {
  const int64_t blocks = contains(name, "c_attn") ? 3 : 1;
  if (contains(name, "ln_") || contains(name, "bias")) {
    return {Placement::replicate(), Placement::shard(0, blocks)};
  }
  if (contains(name, "wte") || contains(name, "wpe")) {
    return {Placement::replicate(), Placement::shard(1)};
  }
  return {Placement::shard(1), Placement::shard(0, blocks)};
}

/// Everything by rows over axis 0, where the batch is cut too.
std::vector<Placement> by_rows(const std::string&, const Tensor&) {
  return {Placement::shard(0), Placement::replicate()};
}

/// Trains a GPT-2 whose parameters are placed by hand on a mesh of (data, tensor) ranks, on a batch
/// cut over axis 0, beside one device.
void expect_trains_alike(int first, int second, at::IntArrayRef batch, const Placing& place,
                         bool fused) {
  run_as_threads(first * second, [&](World world) {
    at::set_num_threads(1);
    models::GPT2Options options;
    options.fused_attention = fused;
    const auto make = [&] { return models::GPT2(options); };
    auto reference = parity::make_seeded(7, make), model = parity::make_seeded(7, make);
    reference->to(torch::kFloat64);
    model->to(torch::kFloat64);
    const MPU mpu(world, MpuOptions().tensor_parallel_size(second));
    const auto mesh = std::make_shared<Mesh>(
        std::vector<std::shared_ptr<Group>>{mpu.data_group(), mpu.tensor_group()});
    int64_t held = 0, all = 0;
    for (const auto& item : model->named_parameters()) {
      all += item.value().numel();
      mark_parameter(item.value(),
                     std::make_shared<Layout>(
                         make_layout(mesh, place(item.key(), item.value()), item.value().sizes())),
                     item.key());
      held += item.value().numel();
    }
    EXPECT_LT(held, all / (first * second) * 1.6);

    const torch::optim::AdamWOptions adam = torch::optim::AdamWOptions(1e-3).eps(1e-5);
    torch::optim::AdamW optimizer(model->parameters(), adam);
    torch::optim::AdamW reference_optimizer(reference->parameters(), adam);
    const auto loss_of = [&](const Tensor& logits, const Tensor& target) {
      return torch::nn::functional::cross_entropy(logits.view({-1, options.vocabulary}),
                                                  target.view({-1}));
    };
    const std::vector<Placement> rows{Placement::shard(0), Placement::replicate()};
    for (int step = 0; step < 3; ++step) {
      const Tensor tokens =
          parity::make_seeded(step, [&] { return torch::randint(options.vocabulary, batch); });
      optimizer.zero_grad();
      reference_optimizer.zero_grad();
      const Tensor logits = model->forward(distribute(tokens, mesh, rows));
      EXPECT_EQ(local_tensor(logits).size(0), batch[0] / first);
      const Tensor loss = loss_of(logits, tokens.flip(1));
      const Tensor expected = loss_of(reference->forward(tokens), tokens.flip(1));
      EXPECT_NEAR(full_tensor(loss).item<double>(), expected.item<double>(), 1e-9);
      loss.backward();
      expected.backward();
      const auto parameters = model->named_parameters();
      for (const auto& item : reference->named_parameters()) {
        parity::expect_close(full_tensor(parameters[item.key()].grad()), item.value().grad(),
                             "gradient of " + item.key());
      }
      optimizer.step();
      reference_optimizer.step();
    }
    const auto parameters = model->named_parameters();
    for (const auto& item : reference->named_parameters()) {
      parity::expect_close(full_tensor(parameters[item.key()].detach()), item.value().detach(),
                           "weight " + item.key());
    }
  });
}

TEST(TwoAxes, WeightsCutBothWaysFusedAttention) {
  expect_trains_alike(2, 2, {4, 8}, grid, true);
}
TEST(TwoAxes, WeightsCutBothWaysAttentionByHand) {
  expect_trains_alike(2, 2, {4, 8}, grid, false);
}

// The engine keeps the batch cut and gathers weights where that moves less: not for tiny batches.
TEST(BatchAxis, ZeroOnTwoRanks) {
  expect_trains_alike(2, 1, {16, 32}, by_rows, true);
}
TEST(BatchAxis, ZeroOnFourRanks) {
  expect_trains_alike(4, 1, {16, 32}, by_rows, false);
}

}  // namespace
}  // namespace oslo
