// Weights under several names: an optimizer steps them, and a norm counts them, as in a program of
// plain LibTorch, which does not remove duplicates from `parameters()`.
#include <gmock/gmock.h>

#include "tests/support/initialized.h"
#include "tests/support/parity.h"
#include "tests/support/temporary_directory.h"

namespace oslo {
namespace {

constexpr int64_t kWords = 11;  // divides by no number of ranks

enum class TiedBy {
  head_takes_table,
  table_takes_head,
  registered_twice,
  module_twice,
  own_member,
  forward,
  transposed,
  nothing
};

struct TyingImpl : torch::nn::Module {
  explicit TyingImpl(TiedBy by) : by(by) {
    table = register_module("table", torch::nn::Embedding(kWords, 6));
    middle = register_module("middle", torch::nn::Linear(6, 6));
    head =
        register_module("head", torch::nn::Linear(torch::nn::LinearOptions(6, kWords).bias(false)));
    if (by == TiedBy::head_takes_table) head->weight = table->weight;
    if (by == TiedBy::table_takes_head) table->weight = head->weight;
    if (by == TiedBy::registered_twice) register_parameter("again", table->weight);
    if (by == TiedBy::module_twice) register_module("twice", middle);
    if (by == TiedBy::own_member) own = table->weight;
  }
  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto x = torch::tanh(middle(torch::tanh(middle(table(tokens)))));
    if (by == TiedBy::forward) head->weight = table->weight;
    if (by == TiedBy::own_member) return torch::linear(x, own) + 0.1 * head(x);
    if (by == TiedBy::transposed) return torch::matmul(x, table->weight.t()) + 0.1 * head(x);
    return head(x);
  }
  TiedBy by;
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear middle{nullptr}, head{nullptr};
  torch::Tensor own;
};
TORCH_MODULE(Tying);

/// Layers of other classes that share what they hold: one convolution for both sides of a pair,
/// norms that share a scale, linear layers that share a bias alone.
struct SharingImpl : torch::nn::Module {
  SharingImpl() {
    left = register_module("left", torch::nn::Conv1d(3, 6, 3));
    right = register_module("right", torch::nn::Conv1d(3, 6, 3));
    first = register_module("first", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
    second = register_module("second", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
    up = register_module("up", torch::nn::Linear(6, 5));
    other = register_module("other", torch::nn::Linear(6, 5));
    right->weight = left->weight;
    right->bias = left->bias;
    second->weight = first->weight;
    other->bias = up->bias;
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto a = first(left(x).mean(-1)), b = second(right(x.flip(-1)).mean(-1));
    return up(a) * other(b);
  }
  torch::nn::Conv1d left{nullptr}, right{nullptr};
  torch::nn::LayerNorm first{nullptr}, second{nullptr};
  torch::nn::Linear up{nullptr}, other{nullptr};
};
TORCH_MODULE(Sharing);

/// One program in both worlds.
struct Program {
  int tensor = 1, data = 1;
  bool optimizer_after = true;
  bool adam = true;
  bool our_clip = false;

  std::string name() const {
    return c10::str("tensor ", tensor, ", data ", data, optimizer_after ? ", after" : ", before",
                    adam ? ", AdamW" : ", SGD", our_clip ? ", our clip" : ", torch's clip");
  }
};

std::vector<Program> programs() {
  std::vector<Program> all;
  for (const auto& [tensor, data] : {std::pair(1, 1), {2, 1}, {3, 1}, {2, 2}}) {
    for (const bool after : {true, false}) {
      all.push_back({tensor, data, after, /*adam=*/true, /*our_clip=*/false});
      all.push_back({tensor, data, after, /*adam=*/false, /*our_clip=*/true});
    }
  }
  return all;
}

std::unique_ptr<torch::optim::Optimizer> optimizer_for(const std::vector<torch::Tensor>& parameters,
                                                       bool adam) {
  if (adam) {
    return std::make_unique<torch::optim::AdamW>(
        parameters, torch::optim::AdamWOptions(1e-2).weight_decay(0.1));
  }
  return std::make_unique<torch::optim::SGD>(
      parameters, torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1));
}

/// Runs `program` on a model of `make` and on one that never met this library: the same norms and
/// losses, and the same tensor under every name after each of three steps.
template <typename Make, typename Loss>
void expect_as_in_plain_libtorch(const Program& program, const Make& make, const Loss& loss,
                                 const torch::Tensor& input) {
  run_as_threads(program.tensor * program.data, [&](World world) {
    at::set_num_threads(1);
    auto plain = parity::make_seeded(1, make), model = parity::make_seeded(1, make);
    plain->to(torch::kFloat64);
    model->to(torch::kFloat64);
    auto expected = optimizer_for(plain->parameters(), program.adam);
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (!program.optimizer_after) optimizer = optimizer_for(model->parameters(), program.adam);
    auto how = test::in(world);
    how.example_inputs = [&] { model->forward(input); };
    const auto parallel =
        initialize(model, Config::parse(parity::tensor_parallel(program.tensor)), how);
    if (program.optimizer_after) optimizer = optimizer_for(model->parameters(), program.adam);
    const auto& mpu = parallel.mpu();
    DistributedDataParallel<decltype(model)> ddp(model, mpu.data_group());
    const auto own = input.tensor_split(program.data)[mpu.get_data_parallel_rank()];
    for (int step = 0; step < 3; ++step) {
      expected->zero_grad();
      optimizer->zero_grad();
      loss(plain->forward(input), input).backward();
      loss(ddp.forward(own), own).backward();
      const double norm = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.3);
      const double ours = program.our_clip
                              ? parallel.clip_grad_norm_(0.3)
                              : torch::nn::utils::clip_grad_norm_(model->parameters(), 0.3);
      EXPECT_NEAR(ours, norm, 1e-6 * norm) << "step " << step;
      expected->step();
      optimizer->step();
      ASSERT_EQ(model->named_parameters().keys(), plain->named_parameters().keys());
      parity::expect_weights(*model, *plain);
      parity::expect_close(full_tensor(model->forward(input)).detach(),
                           plain->forward(input).detach(), "output", {1e-6, 1e-7});
    }
  });
}

torch::Tensor word_loss(const torch::Tensor& logits, const torch::Tensor& tokens) {
  return torch::nn::functional::cross_entropy(logits, (tokens * 3 + 1) % kWords);
}

TEST(Ties, AreSteppedAndCountedAsInPlainLibTorch) {
  const auto tokens = torch::arange(14) % kWords;
  for (const TiedBy by : {TiedBy::head_takes_table, TiedBy::table_takes_head,
                          TiedBy::registered_twice, TiedBy::module_twice, TiedBy::own_member,
                          TiedBy::forward, TiedBy::transposed, TiedBy::nothing}) {
    for (const Program& program : programs()) {
      // Averaging takes it that every parameter has a gradient, which these lack on any device.
      const bool unused = by == TiedBy::forward;
      if (unused && program.data > 1) continue;
      SCOPED_TRACE(c10::str("tie ", static_cast<int>(by), ", ", program.name()));
      expect_as_in_plain_libtorch(
          program, [&] { return Tying(by); }, word_loss, tokens);
    }
  }
}

TEST(Ties, OfOtherLayersAndOfBiases) {
  const auto input = parity::make_seeded(3, [] {
    return torch::randn({4, 3, 7}, torch::kFloat64);
  });
  for (const Program& program : programs()) {
    SCOPED_TRACE(program.name());
    expect_as_in_plain_libtorch(
        program, [] { return Sharing(); },
        [](const torch::Tensor& y, const torch::Tensor&) { return y.pow(2).mean(); }, input);
  }
}

TEST(Ties, TheTensorThatNobodyUsesIsCutAsWell) {
  run_as_threads(2, [](World world) {
    auto model = parity::make_seeded(2, [] { return Tying(TiedBy::head_takes_table); });
    const auto unused = model->head->named_parameters()["weight"];
    const auto before = unused.detach().clone();
    const auto parallel =
        initialize(model, Config::parse(parity::tensor_parallel(2)), test::in(world));
    EXPECT_TRUE(model->named_parameters()["head.weight"].is_same(unused));
    EXPECT_FALSE(unused.is_same(model->table->weight));
    EXPECT_EQ(unused.size(0), world.rank() == 0 ? 6 : 5);
    EXPECT_TRUE(torch::equal(full_tensor(unused).detach(), before));
    const Plan plan = parallel.plan();
    const PlanEntry& head = plan.entries.back();
    EXPECT_EQ(head.parameter, "head.weight");
    EXPECT_EQ(head.tied_to, "table.weight");
    EXPECT_EQ(head.unused_bytes, unused.numel() * 4);
    EXPECT_THAT(plan.to_string(), testing::HasSubstr("registered tensors that nothing uses"));
  });
}

TEST(Ties, InitialValuesAreComparedWhereTheyAreUsed) {
  run_as_threads(2, [](World world) {
    auto model = parity::make_seeded(2, [] { return Tying(TiedBy::head_takes_table); });
    {
      const torch::NoGradGuard no_grad;
      model->head->named_parameters()["weight"].fill_(world.rank());
    }
    initialize(model, Config::parse(parity::tensor_parallel(2)), test::in(world)).check();
  });
  std::vector<std::string> errors(2);
  run_as_threads(2, [&](World world) {
    auto model = parity::make_seeded(2, [] { return Tying(TiedBy::table_takes_head); });
    {
      const torch::NoGradGuard no_grad;
      model->head->weight.fill_(world.rank());
    }
    try {
      initialize(model, Config::parse(parity::tensor_parallel(2)), test::in(world));
    } catch (const Error& error) {
      errors[world.rank()] = error.what();
    }
  });
  EXPECT_THAT(errors, testing::Each(testing::HasSubstr("rank 0 has table.weight (hash")));
}

TEST(Ties, MergedCheckpointsHoldTheTiedValuesUnderBothNames) {
  const test::TemporaryDirectory folder;
  const auto trained = [](auto model) {
    for (int step = 0; step < 2; ++step) {
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      model->zero_grad();
      word_loss(model->forward(torch::arange(kWords)), torch::arange(kWords)).backward();
      optimizer.step();
    }
  };
  auto plain = parity::make_seeded(2, [] { return Tying(TiedBy::head_takes_table); });
  trained(plain);
  run_as_threads(2, [&](World world) {
    auto model = parity::make_seeded(2, [] { return Tying(TiedBy::head_takes_table); });
    const auto parallel =
        initialize(model, Config::parse(parity::tensor_parallel(2)), test::in(world));
    trained(model);
    parallel.save_parallelized(folder / "parts");
    parallel.save_parallelized(folder / "merged", SaveOptions().merge_checkpoints(true));
    auto other = parity::make_seeded(5, [] { return Tying(TiedBy::head_takes_table); });
    initialize(other, Config::parse(parity::tensor_parallel(2)), test::in(world))
        .from_parallelized(folder / "parts");
    EXPECT_TRUE(torch::equal(full_tensor(other->table->weight), full_tensor(model->table->weight)));
    EXPECT_TRUE(other->head->weight.is_same(other->table->weight));
  });
  Tying loaded(TiedBy::head_takes_table);
  load_state(*loaded, folder / "merged");
  EXPECT_TRUE(torch::allclose(loaded->head->weight, plain->table->weight, 1e-5, 1e-6));
  Tying untied(TiedBy::nothing);
  load_state(*untied, folder / "merged");
  EXPECT_TRUE(torch::allclose(untied->head->weight, plain->table->weight, 1e-5, 1e-6));
  EXPECT_TRUE(torch::equal(untied->head->weight, untied->table->weight));
}

}  // namespace
}  // namespace oslo
