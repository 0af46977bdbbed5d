// "sequence_parallel" with dropout, recomputation, mixed precision, pipeline stages, and branches
// that end in one sum.
#include "tests/joined_sums_test/parallel_block.h"
#include "tests/models/llama.h"
#include "tests/sequence_parallel_test/streams.h"
#include "tests/support/own_draws.h"
#include "tests/support/pipeline_parity.h"
#include "tests/support/under_autocast.h"

namespace sequence_parallel {
namespace {

using oslo::test::make_seeded;
using parity::expect_close;

/// A model on one device, and the same under initialize.
template <typename Model>
struct Both {
  template <typename Make>
  Both(const oslo::World& world, const Make& make, torch::Dtype type, const Tensor& x,
       const std::string& text)
      : reference(make_seeded(7, make)), model(make_seeded(7, make)) {
    at::set_num_threads(1);
    reference->to(type);
    model->to(type);
    oslo::InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { model->forward(x); };
    parallel.emplace(oslo::initialize(model, oslo::Config::parse(text), how));
  }

  Model reference, model;
  std::optional<oslo::ParallelModel> parallel;
};

/// Three steps of AdamW, with dropout where the model has it.
template <typename Make>
void expect_trains(int ranks, const Make& make, const std::function<Tensor(int)>& batch,
                   const std::string& more, const std::function<Tensor(const Tensor&)>& loss) {
  using Model = decltype(make());
  std::vector<Tensor> batches;
  for (int step = 0; step < 3; ++step) {
    batches.push_back(make_seeded(100 + step, [&] { return batch(step); }));
  }
  oslo::run_as_threads(ranks, [&](const oslo::World& world) {
    Both<Model> both(world, make, torch::kDouble, batches[0], config(ranks, more));
    torch::optim::AdamW mine(both.model->parameters(), torch::optim::AdamWOptions(1e-3)),
        theirs(both.reference->parameters(), torch::optim::AdamWOptions(1e-3));
    for (int step = 0; step < 3; ++step) {
      mine.zero_grad();
      theirs.zero_grad();
      Tensor expected, output;
      {
        const oslo::test::OwnDraws draws(20 + step);
        expected = both.reference->forward(batches[step]);
        loss(expected).backward();
      }
      {
        const oslo::test::OwnDraws draws(20 + step);
        output = both.model->forward(batches[step]);
        loss(output).backward();
      }
      expect_close(oslo::full_tensor(output), expected, "output");
      parity::expect_gradients(*both.model, *both.reference);
      mine.step();
      theirs.step();
    }
    parity::expect_weights(*both.model, *both.reference);
    both.model->eval();
    both.reference->eval();
    const c10::InferenceMode inference;
    expect_close(oslo::full_tensor(both.model->forward(batches[0])),
                 both.reference->forward(batches[0]), "inference");
  });
}

Tensor squared(const Tensor& output) {
  return output.square().mean();
}

std::function<Tensor(int)> tokens_of(int64_t vocabulary, int64_t length) {
  return [=](int) { return torch::randint(vocabulary, {3, length}); };
}

constexpr const char* kAgain = R"("activation_checkpoint": {"enabled": true})";

TEST(SequenceParallelWith, Dropout) {
  const auto gpt2 = [] { return models::GPT2(gpt2_options(0.25)); };
  expect_trains(2, gpt2, tokens_of(35, 7), "", squared);
  expect_trains(3, gpt2, tokens_of(35, 13), "", squared);
  expect_trains(
      2, [] { return EncoderModel(0.25); }, tokens_of(31, 7), "", squared);
}

TEST(SequenceParallelWith, Recomputation) {
  const auto gpt2 = [] { return models::GPT2(gpt2_options()); };
  const auto llama = [] { return models::Llama(models::LlamaOptions()); };
  expect_trains(2, gpt2, tokens_of(35, 7), kAgain, squared);
  expect_trains(3, llama, tokens_of(70, 13), kAgain, squared);
}

TEST(SequenceParallelWith, BranchesThatEndInOneSum) {
  using joined_sums::Form;
  for (const Form form : {Form::gptj, Form::palm, Form::neox}) {
    for (const double dropout : {0.0, 0.25}) {
      const auto make = [=] {
        return joined_sums::Stack(joined_sums::Options{.form = form, .dropout = dropout});
      };
      const auto batch = [](int) { return torch::randn({4, 7, 12}, torch::kDouble); };
      // The stack's own forward takes an input in the type of the model.
      expect_trains(2, make, batch, "", squared);
      expect_trains(3, make, batch, "", squared);
      if (dropout == 0) expect_trains(2, make, batch, kAgain, squared);
    }
  }
}

TEST(SequenceParallelWith, Autocast) {
  const Tensor x = make_seeded(3, [] { return torch::randint(35, {3, 7}); });
  oslo::run_as_threads(2, [&](const oslo::World& world) {
    Both<models::GPT2> both(
        world, [] { return models::GPT2(gpt2_options()); }, torch::kFloat, x,
        config(2, R"("amp": {"enabled": true})"));
    const Tensor y = both.model->forward(x);
    token_loss(y, x.flip(1)).backward();
    Tensor expected;
    {
      const oslo::test::UnderAutocast autocast(torch::kBFloat16);
      expected = both.reference->forward(x);
      token_loss(expected, x.flip(1)).backward();
    }
    EXPECT_EQ(y.scalar_type(), expected.scalar_type());
    expect_close(oslo::full_tensor(y), expected, "output", {3e-2, 1e-1});
    parity::expect_gradients(*both.model, *both.reference, {5e-2, 5e-3});
    // Half as many bytes as of float, and no all-reduce of a product.
    const Moved moved = moved_by(*both.parallel);
    EXPECT_EQ(moved.count("all_reduce aten::matmul"), 0);
  });
}

/// Each context rank's part of the sequence is cut again over its tensor ranks.
TEST(SequenceParallelWith, ContextParallelism) {
  const Tensor tokens = make_seeded(3, [] { return torch::randint(35, {2, 13}); });
  oslo::run_as_threads(4, [&](const oslo::World& world) {
    Both<models::GPT2> both(
        world, [] { return models::GPT2(gpt2_options()); }, torch::kDouble, tokens,
        config(2, R"("context_parallel_size": 2)"));
    const Tensor y = both.model->forward(tokens), expected = both.reference->forward(tokens);
    token_loss(y, tokens).backward();
    token_loss(expected, tokens).backward();
    expect_close(oslo::full_tensor(y), expected, "output");
    parity::expect_gradients(*both.model, *both.reference);
    EXPECT_GT(both.parallel->mpu().tensor_group()->ledger().total("reduce_scatter").calls, 0);
  });
}

TEST(SequenceParallelWith, PipelineStages) {
  pipeline_parity::Trial trial{{1, 2, 2}, "1f1b", /*micro_batches=*/2};
  trial.config = config(2, "", /*pipeline=*/2);
  trial.evaluates = true;
  const auto batch = [](int) {
    return std::vector<Tensor>{torch::randint(35, {4, 7}), torch::randint(35, {4, 7})};
  };
  const auto loss = [](auto& model, const std::vector<Tensor>& micro) {
    return token_loss(model->forward(micro[0]), micro[1]);
  };
  pipeline_parity::expect_parity(
      trial, [] { return models::GPT2(gpt2_options()); }, batch, loss,
      [](const pipeline_parity::Outcome& outcome) {
        const Moved moved = moved_by(outcome.parallel);
        EXPECT_GT(all_of(moved, "reduce_scatter").first, 0);
        EXPECT_EQ(moved.count("all_reduce aten::matmul"), 0);
      });
}

}  // namespace
}  // namespace sequence_parallel
