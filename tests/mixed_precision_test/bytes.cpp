// What the table "Bytes" of docs/mixed-precision.md says, as LibTorch's allocator counts it.
#include "tests/mixed_precision_test/cases.h"
#include "tests/support/counted_memory.h"

namespace oslo::test::bytes {
namespace {

using torch::Tensor;

/// Products of weights themselves, and of `weight.t()`, which `nn::Linear` takes.
struct NetImpl : torch::nn::Module {
  Tensor forward(const Tensor& words) {
    const Tensor x = norm->forward(table->forward(words));
    return head->forward(down->forward(torch::linear(x, up->weight, up->bias)));
  }
  torch::nn::Embedding table = register_module("table", torch::nn::Embedding(61, 24));
  torch::nn::LayerNorm norm =
      register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({24})));
  torch::nn::Linear up = register_module("up", torch::nn::Linear(24, 56)),
                    down = register_module("down", torch::nn::Linear(56, 24)),
                    head = register_module("head", torch::nn::Linear(24, 61));
};
TORCH_MODULE(Net);

struct Held {
  int64_t parameters = 0, cast = 0;  ///< elements; of those that products read
  int64_t at_rest = 0;               ///< between steps: parameters, states, casts that stay
  int64_t forward = 0;               ///< what a forward leaves for backward
  int64_t gradients = 0;
};

Held held(const std::string& keys, bool half = false) {
  Held found;
  run_as_threads(1, [&](World world) {
    at::set_num_threads(1);
    const Tensor words = torch::arange(3 * 7).remainder(61).view({3, 7});
    const CountedMemory memory;
    Net model = make_seeded(3, [] { return Net(); });
    if (half) model->to(torch::kBFloat16);
    const auto parallel = initialize(model, Config::parse("{" + keys + "}"), in(world));
    for (const auto& item : model->named_parameters()) {
      const std::string& name = item.key();
      // Of three dimensions nn::Linear adds the bias behind its product.
      const bool read = name.starts_with("up") || name == "down.weight" || name == "head.weight";
      found.parameters += item.value().numel();
      if (read) found.cast += item.value().numel();
    }
    torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));
    for (int step = 0; step < 3; ++step) {
      const int64_t before = memory.bytes();
      Tensor loss = next_word(model->forward(words).to(torch::kFloat), words);
      found.forward = memory.bytes() - before;
      loss.backward();
      loss.reset();
      optimizer.step();
      const int64_t with_gradients = memory.bytes();
      optimizer.zero_grad();
      found.at_rest = memory.bytes();
      found.gradients = with_gradients - found.at_rest;
    }
  });
  return found;
}

const std::string kAmp = R"("amp": {"enabled": true, "dtype": "bfloat16"})",
                  kMasters = R"("master_weights": true)";

TEST(MixedPrecisionBytes, AreThoseOfTheTable) {
  const Held plain = held(R"("model_parallelism": {"enable": true})");
  const int64_t p = plain.parameters, m = plain.cast;
  EXPECT_EQ(plain.at_rest, 4 * p + 8 * p);
  EXPECT_EQ(plain.gradients, 4 * p);

  const Held amp = held(kAmp);
  EXPECT_EQ(amp.at_rest, 4 * p + 8 * p);
  EXPECT_EQ(amp.gradients, 4 * p);

  const Held masters = held(kAmp + ", " + kMasters);
  EXPECT_EQ(masters.at_rest, 4 * p + 2 * m + 8 * p);
  EXPECT_EQ(masters.gradients, 4 * p);
  // Without it a forward makes them, for as long as its graph lives.
  EXPECT_EQ(amp.forward - masters.forward, 2 * m);

  const Held half_masters = held(kMasters, /*half=*/true);
  EXPECT_EQ(half_masters.at_rest, 4 * p + 2 * p + 8 * p);
  EXPECT_EQ(half_masters.gradients, 4 * p);

  const Held half = held(R"("model_parallelism": {"enable": true})", /*half=*/true);
  EXPECT_EQ(half.at_rest, 2 * p + 4 * p);
  EXPECT_EQ(half.gradients, 4 * p);

  const Held half_reduced = held(R"("reduce_dtype": "bfloat16")", /*half=*/true);
  EXPECT_EQ(half_reduced.at_rest, 2 * p + 4 * p);
  EXPECT_EQ(half_reduced.gradients, 2 * p);
}

}  // namespace
}  // namespace oslo::test::bytes
