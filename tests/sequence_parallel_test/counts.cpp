// What a block moves and keeps with its stream cut along the sequence, exactly: an all-gather in
// front of what column layers share and a reduce-scatter behind each row layer, or behind the sum
// of several, and the other of each pair in backward.
#include <set>

#include "parallelizers/memory/saved_tensors.h"
#include "tests/joined_sums_test/parallel_block.h"
#include "tests/models/llama.h"
#include "tests/sequence_parallel_test/streams.h"
#include "tests/support/own_draws.h"

namespace sequence_parallel {
namespace {

constexpr int64_t kBatch = 3, kTokens = 8, kLayers = 2;

/// Of a direction: all-gathers and reduce-scatters, and what a rank receives in all of them.
struct Calls {
  int64_t gathers = 0, scatters = 0, elements = 0;
  bool operator==(const Calls&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Calls& calls) {
  return out << calls.gathers << " all-gathers, " << calls.scatters << " reduce-scatters, "
             << calls.elements << " elements";
}

Calls calls_of(oslo::Ledger& ledger) {
  const auto gathers = ledger.total("all_gather"), scatters = ledger.total("reduce_scatter");
  return {gathers.calls, scatters.calls, gathers.elements + scatters.elements};
}

/// Elements of the stream that a rank receives in one of them.
int64_t received(int64_t hidden, int ranks) {
  return kBatch * kTokens * hidden * (ranks - 1) / ranks;
}

template <typename Make>
void expect_calls(int ranks, const Make& make, const std::function<Tensor()>& input, int64_t hidden,
                  Calls forward, Calls backward, int64_t vectors) {
  const Tensor x = oslo::test::make_seeded(3, input);
  oslo::run_as_threads(ranks, [&](const oslo::World& world) {
    at::set_num_threads(1);
    auto model = oslo::test::make_seeded(7, make);
    oslo::InitializeOptions how;
    how.world = world;
    how.example_inputs = [&] { model->forward(x); };
    auto parallel = oslo::initialize(model, oslo::Config::parse(config(ranks)), how);
    oslo::Ledger& ledger = parallel.mpu().tensor_group()->ledger();
    ledger.clear();
    const Tensor y = model->forward(x);
    EXPECT_EQ(calls_of(ledger), forward) << parallel.plan().to_string();
    EXPECT_EQ(ledger.total("all_reduce").calls, 0);
    ledger.clear();
    (oslo::is_placed(y) ? oslo::local_tensor(y) : y).sum().backward();
    EXPECT_EQ(calls_of(ledger), backward);
    // The gradients of what is whole while the stream is cut: a vector each.
    EXPECT_EQ(ledger.total("all_reduce").calls, vectors);
    EXPECT_EQ(ledger.total("all_reduce").elements, vectors * 2 * hidden * (ranks - 1) / ranks);
  });
}

std::function<Tensor()> tokens_below(int64_t vocabulary) {
  return [=] { return torch::randint(vocabulary, {kBatch, kTokens}); };
}

TEST(SequenceParallelCounts, APreNormBlock) {
  for (const int ranks : {2, 4}) {
    const int64_t part = received(24, ranks);
    // The embedding scatters, its positions' gradient is gathered; the head gathers its input.
    const int64_t ends = part + part;
    expect_calls(
        ranks, [] { return models::GPT2(gpt2_options()); }, tokens_below(35), 24,
        {2 * kLayers + 1, 2 * kLayers + 1, 4 * kLayers * part + ends},
        {2 * kLayers + 2, 2 * kLayers + 1, 4 * kLayers * part + ends + part / kBatch},
        // Two norms and two biases of row layers a block, and the last norm.
        (2 * 2 + 2) * kLayers + 2);
  }
}

/// Three projections share one all-gather, gate and up another one.
TEST(SequenceParallelCounts, ProjectionsOfOneValueShareItsGather) {
  const int64_t part = received(48, 2);
  expect_calls(
      2, [] { return models::Llama(models::LlamaOptions()); }, tokens_below(70), 48,
      {2 * kLayers + 1, 2 * kLayers + 1, (4 * kLayers + 2) * part},
      {2 * kLayers + 1, 2 * kLayers + 1, (4 * kLayers + 2) * part}, 2 * kLayers + 1);
}

struct BranchesImpl : torch::nn::Module {
  explicit BranchesImpl(joined_sums::Form form) {
    words = register_module("words", torch::nn::Embedding(35, 12));
    stack =
        register_module("stack", joined_sums::Stack(joined_sums::Options{.form = form}, kLayers));
  }
  Tensor forward(const Tensor& tokens) { return stack(words(tokens)); }
  torch::nn::Embedding words{nullptr};
  joined_sums::Stack stack{nullptr};
};
TORCH_MODULE(Branches);

/// Branches side by side: one reduce-scatter for the sum of both, which adds their biases as well.
TEST(SequenceParallelCounts, BranchesThatEndInOneSum) {
  using joined_sums::Form;
  const int64_t part = received(12, 2);
  for (const Form form : {Form::gptj, Form::palm, Form::neox}) {
    SCOPED_TRACE(static_cast<int>(form));
    // Branches with a norm each gather twice.
    const int64_t norms = form == Form::neox ? 2 : 1;
    const int64_t elements = (kLayers * (norms + 1) + 1) * part;
    expect_calls(
        2, [=] { return Branches(form); }, tokens_below(35), 12,
        {norms * kLayers, kLayers + 1, elements}, {kLayers + 1, norms * kLayers, elements},
        2 * norms * kLayers + 2);
  }
}

/// Bytes that operators of this thread save, each memory once.
int64_t saved_bytes(const std::function<void()>& forward) {
  std::map<const void*, int64_t> memories;
  std::vector<c10::Storage> held;
  const oslo::SavedTensorScope scope([&](const Tensor& saved) {
    held.push_back(saved.storage());
    memories[saved.storage().unsafeGetStorageImpl()] =
        static_cast<int64_t>(saved.storage().nbytes());
    return oslo::UnpackSavedTensor();
  });
  forward();
  int64_t bytes = 0;
  for (const auto& [memory, own] : memories) bytes += own;
  return bytes;
}

/// What norms, dropout and residual sums save is 1/n of it.
TEST(SequenceParallelCounts, NormsAndDropoutSaveTheirPart) {
  for (const int ranks : {2, 4}) {
    oslo::run_as_threads(ranks, [&](const oslo::World& world) {
      at::set_num_threads(1);
      const auto saved_under = [&](const std::string& text) {
        auto model =
            oslo::test::make_seeded(7, [] { return models::GPT2(gpt2_options(/*dropout=*/0.25)); });
        const Tensor tokens = oslo::test::make_seeded(3, tokens_below(35));
        oslo::InitializeOptions how;
        how.world = world;
        how.example_inputs = [&] { model->forward(tokens); };
        const auto parallel = oslo::initialize(model, oslo::Config::parse(text), how);
        const oslo::test::OwnDraws draws(5);
        return saved_bytes([&] { model->forward(tokens); });
      };
      const int64_t whole = saved_under(parity::tensor_parallel(ranks));
      const int64_t cut = saved_under(config(ranks));
      // A block's norms save their inputs, and mean and deviation of each token; dropout its mask.
      const int64_t tokens = kBatch * kTokens, stream = tokens * 24;
      const int64_t norm = stream + 2 * tokens;
      const int64_t of_one_device = 4 * (kLayers * (2 * norm + stream) + norm);
      EXPECT_EQ(whole - cut, of_one_device - of_one_device / ranks);
    });
  }
}

}  // namespace
}  // namespace sequence_parallel
