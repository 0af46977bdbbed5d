// A mixture of experts by masks: each expert computes the rows that chose it, found by a mask and
// put back by index_add_, as published sources without a dispatcher do.
#include "tests/programs_test/training_program.h"

namespace programs {
namespace {

namespace nn = torch::nn;

constexpr int64_t kWidth = 10, kExperts = 5, kChosen = 2, kWords = 17;

struct ExpertImpl : nn::Module {
  Tensor forward(const Tensor& x) { return down(torch::silu(gate(x)) * up(x)); }
  nn::Linear gate{register_module("gate", nn::Linear(kWidth, 14))};
  nn::Linear up{register_module("up", nn::Linear(kWidth, 14))};
  nn::Linear down{register_module("down", nn::Linear(14, kWidth))};
};
TORCH_MODULE(Expert);

struct MaskedExpertsImpl : nn::Module {
  MaskedExpertsImpl() {
    for (int64_t i = 0; i < kExperts; ++i) experts->push_back(Expert());
  }
  /// Token ids [rows, time] to logits, and the balancing loss of Switch Transformer.
  std::tuple<Tensor, Tensor> forward(const Tensor& ids) {
    const Tensor x = norm(table(ids)).flatten(0, 1);
    const Tensor probabilities = torch::softmax(router(x), -1);
    const auto [weights, chosen] = probabilities.topk(kChosen, -1);
    const Tensor shares = weights / weights.sum(-1, /*keepdim=*/true);
    Tensor mixed = torch::zeros_like(x);
    for (int64_t i = 0; i < kExperts; ++i) {
      const Tensor mask = chosen == i;  // [rows, kChosen]
      const Tensor rows = mask.any(1).nonzero().squeeze(1);
      if (rows.numel() == 0) continue;
      const Tensor share = (shares * mask).sum(1).index_select(0, rows).unsqueeze(1);
      const Tensor result = experts[i]->as<Expert>()->forward(x.index_select(0, rows)) * share;
      mixed.index_add_(0, rows, result);
    }
    const Tensor used = torch::one_hot(chosen, kExperts).to(x.scalar_type()).sum(1).mean(0);
    return {head(x + mixed).unflatten(0, ids.sizes()),
            (used * probabilities.mean(0)).sum() * double(kExperts)};
  }
  nn::Embedding table{register_module("table", nn::Embedding(kWords, kWidth))};
  nn::LayerNorm norm{register_module("norm", nn::LayerNorm(nn::LayerNormOptions({kWidth})))};
  nn::Linear router{
      register_module("router", nn::Linear(nn::LinearOptions(kWidth, kExperts).bias(false)))};
  nn::ModuleList experts{register_module("experts", nn::ModuleList())};
  nn::Linear head{register_module("head", nn::Linear(kWidth, kWords))};
};
TORCH_MODULE(MaskedExperts);

/// Only the cross entropy is a mean over rows: what balances is a product of means.
void masked_experts(Device& device) {
  auto model = Device::make(6, [] { return MaskedExperts(); });
  const auto ids = [&](int step) { return device.part(classes({4, 7}, kWords, step)); };
  device.initialize(model, [&] { model->forward(ids(0)); });
  Replica replica(device, model, oslo::DDPOptions().find_unused_parameters(true));
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const auto [logits, balance] = replica.forward(ids(step));
    Tensor loss = nn::functional::cross_entropy(logits.flatten(0, 1), ids(step + 1).flatten());
    loss = loss + (device.mesh().data == 1 ? 0.01 : 0.0) * balance;
    loss.backward();
    device.note_mean("loss", loss);
    device.note_gradients("model", *model);
    optimizer.step();
  }
  device.note_model("model", *model);
}
TRAINING_PROGRAM(masked_experts);

}  // namespace
}  // namespace programs
