// Attention with every kind of mask, with dropout, on pipeline stages: masks of the batch, of an
// earlier stage's values, of buffers and of parameters.
#include <limits>

#include "tests/support/own_draws.h"
#include "tests/support/pipeline_parity.h"

namespace oslo::test {
namespace {

using pipeline_parity::Tensors;
using torch::Tensor;

/// Where the mask of a layer comes from.
enum class MaskFrom {
  nothing,
  causal,
  batch,         ///< truth values of a tensor that every rank has
  activations,   ///< truth values, computed on the first stage
  buffer,        ///< truth values, of which a row allows nothing
  parameter,     ///< numbers, trained
  first_numbers  ///< numbers with a gradient, computed on the first stage
};
constexpr int kKinds = 7, kTime = 5, kHeads = 3, kHidden = 12;

struct MaskedLayerImpl : torch::nn::Module {
  MaskedLayerImpl(MaskFrom from, bool grouped)
      : from(from), grouped(grouped), key_width(grouped ? kHidden / kHeads : kHidden) {
    q = register_module("q", torch::nn::Linear(kHidden, kHidden));
    k = register_module("k", torch::nn::Linear(kHidden, key_width));
    v = register_module("v", torch::nn::Linear(kHidden, key_width));
    out = register_module("out", torch::nn::Linear(kHidden, kHidden));
    if (from == MaskFrom::buffer) {
      own = torch::ones({kTime, kTime}, torch::kBool).tril();
      own[2].fill_(false);
      own = register_buffer("own", own);
    }
    if (from == MaskFrom::parameter) {
      own = register_parameter("own", torch::randn({kHeads, kTime, kTime}));
    }
  }

  Tensor forward(const Tensor& x, const Tensor& first, const Tensor& allowed) {
    const auto heads = [&](const Tensor& t) {
      return t.view({t.size(0), kTime, -1, kHidden / kHeads}).transpose(1, 2);
    };
    std::optional<Tensor> mask;
    if (from == MaskFrom::batch) mask = allowed.unsqueeze(1).unsqueeze(1);
    if (from == MaskFrom::activations) {
      mask = (first.detach().sum(-1) > 0).unsqueeze(1).unsqueeze(1);
    }
    if (from == MaskFrom::first_numbers) mask = first.mean(-1).unsqueeze(1).unsqueeze(1);
    if (own.defined()) mask = own;
    // A layer's dropout is the same wherever, and in whatever order, micro-batches come.
    const OwnDraws draws(static_cast<uint64_t>(from) + 1);
    const Tensor y = at::scaled_dot_product_attention(
        heads(q(x)), heads(k(x)), heads(v(x)), mask, is_training() ? 0.4 : 0.0,
        from == MaskFrom::causal, std::nullopt, grouped);
    return x + out(y.transpose(1, 2).reshape(x.sizes()));
  }

  MaskFrom from;
  bool grouped;
  int64_t key_width;
  torch::nn::Linear q{nullptr}, k{nullptr}, v{nullptr}, out{nullptr};
  Tensor own;
};
TORCH_MODULE(MaskedLayer);

struct MaskedNetImpl : torch::nn::Module {
  explicit MaskedNetImpl(bool grouped) {
    for (int kind = 0; kind < kKinds; ++kind) {
      layers->push_back(MaskedLayer(static_cast<MaskFrom>(kind), grouped));
    }
    register_module("layers", layers);
  }
  Tensor forward(const Tensor& input, const Tensor& allowed) {
    Tensor x = input, first;
    for (const auto& layer : *layers) {
      x = layer->as<MaskedLayer>()->forward(x, first, allowed);
      if (!first.defined()) first = x;
    }
    return x;
  }
  torch::nn::ModuleList layers;
};
TORCH_MODULE(MaskedNet);

TEST(PipelineAttention, MasksAndDropoutAreThoseOfOneDevice) {
  const auto batch = [](int) {
    Tensor allowed = torch::rand({8, kTime}).gt(0.3);
    allowed.select(1, 1).fill_(true);
    allowed[3].fill_(false);  // a sample that sees nothing
    return Tensors{torch::randn({8, kTime, kHidden}, torch::kDouble), allowed,
                   torch::randn({8, kTime, kHidden}, torch::kDouble)};
  };
  const auto loss = [](auto& model, const Tensors& micro) {
    return torch::mse_loss(model->forward(micro[0], micro[1]), micro[2]);
  };
  for (const bool grouped : {false, true}) {
    for (const pipeline_parity::Trial& each : std::vector<pipeline_parity::Trial>{
             {{1, 1, 2}}, {{1, 1, 3}}, {{1, 2, 2}}, {{1, 1, 2}, "zbv"}, {{1, 1, 7}, "gpipe"}}) {
      pipeline_parity::Trial trial = each;
      trial.batch_coupled = true;  // one device draws for a micro-batch at a time, too
      trial.evaluates = true;
      trial.steps = 2;
      SCOPED_TRACE(trial.grid.name() + trial.kind);
      EXPECT_TRUE(expect_parity(
          trial, [&] { return MaskedNet(grouped); }, batch, loss));
    }
  }
}

}  // namespace
}  // namespace oslo::test
