// nanoGPT with its tied head, and an optimizer made afterwards.
#include "tests/programs_test/training_program.h"

namespace programs {
namespace {

namespace nn = torch::nn;

struct NanoConfig {
  int64_t block_size = 7, vocab_size = 29, n_layer = 2, n_head = 3, n_embd = 12;
};

struct CausalSelfAttentionImpl : nn::Module {
  explicit CausalSelfAttentionImpl(const NanoConfig& config)
      : c_attn(register_module("c_attn", nn::Linear(config.n_embd, 3 * config.n_embd))),
        c_proj(register_module("c_proj", nn::Linear(config.n_embd, config.n_embd))),
        n_head(config.n_head),
        n_embd(config.n_embd) {
    bias = register_buffer("bias", torch::tril(torch::ones({config.block_size, config.block_size}))
                                       .view({1, 1, config.block_size, config.block_size}));
  }
  Tensor forward(const Tensor& x) {
    const auto B = x.size(0), T = x.size(1), C = x.size(2);
    const auto qkv = c_attn(x).split(n_embd, 2);
    const Tensor k = qkv[1].view({B, T, n_head, C / n_head}).transpose(1, 2);
    const Tensor q = qkv[0].view({B, T, n_head, C / n_head}).transpose(1, 2);
    const Tensor v = qkv[2].view({B, T, n_head, C / n_head}).transpose(1, 2);
    Tensor att = torch::matmul(q, k.transpose(-2, -1)) * (1.0 / std::sqrt(double(k.size(-1))));
    using torch::indexing::Slice;
    att = att.masked_fill(bias.index({Slice(), Slice(), Slice(0, T), Slice(0, T)}) == 0,
                          -std::numeric_limits<double>::infinity());
    att = torch::softmax(att, -1);
    const Tensor y = torch::matmul(att, v).transpose(1, 2).contiguous().view({B, T, C});
    return c_proj(y);
  }
  nn::Linear c_attn, c_proj;
  Tensor bias;
  int64_t n_head, n_embd;
};
TORCH_MODULE(CausalSelfAttention);

struct NanoBlockImpl : nn::Module {
  explicit NanoBlockImpl(const NanoConfig& config)
      : ln_1(register_module("ln_1", nn::LayerNorm(nn::LayerNormOptions({config.n_embd})))),
        attn(register_module("attn", CausalSelfAttention(config))),
        ln_2(register_module("ln_2", nn::LayerNorm(nn::LayerNormOptions({config.n_embd})))),
        c_fc(register_module("c_fc", nn::Linear(config.n_embd, 4 * config.n_embd))),
        c_proj(register_module("c_proj", nn::Linear(4 * config.n_embd, config.n_embd))) {}
  Tensor forward(Tensor x) {
    x = x + attn(ln_1(x));
    return x + c_proj(torch::gelu(c_fc(ln_2(x))));
  }
  nn::LayerNorm ln_1;
  CausalSelfAttention attn;
  nn::LayerNorm ln_2;
  nn::Linear c_fc, c_proj;
};
TORCH_MODULE(NanoBlock);

struct NanoGPTImpl : nn::Module {
  explicit NanoGPTImpl(const NanoConfig& config) : config(config) {
    wte = register_module("wte", nn::Embedding(config.vocab_size, config.n_embd));
    wpe = register_module("wpe", nn::Embedding(config.block_size, config.n_embd));
    for (int64_t i = 0; i < config.n_layer; ++i) h->push_back(NanoBlock(config));
    register_module("h", h);
    ln_f = register_module("ln_f", nn::LayerNorm(nn::LayerNormOptions({config.n_embd})));
    lm_head = register_module(
        "lm_head", nn::Linear(nn::LinearOptions(config.n_embd, config.vocab_size).bias(false)));
    lm_head->weight = wte->weight;
    const torch::NoGradGuard no_grad;
    for (auto& item : named_parameters()) {
      if (item.key().ends_with("c_proj.weight")) item.value().mul_(1.0 / std::sqrt(2.0 * 2));
    }
  }
  std::pair<Tensor, Tensor> forward(const Tensor& idx, const Tensor& targets = {}) {
    const auto T = idx.size(1);
    const Tensor pos = torch::arange(0, T, torch::TensorOptions(torch::kLong).device(idx.device()));
    Tensor x = wte(idx) + wpe(pos);
    for (const auto& block : *h) x = block->as<NanoBlock>()->forward(x);
    x = ln_f(x);
    if (!targets.defined()) {
      using torch::indexing::Slice;
      return {lm_head(x.index({Slice(), torch::tensor({-1}), Slice()})), Tensor()};
    }
    const Tensor logits = lm_head(x);
    const Tensor loss =
        nn::functional::cross_entropy(logits.view({-1, logits.size(-1)}), targets.view(-1),
                                      nn::functional::CrossEntropyFuncOptions().ignore_index(-1));
    return {logits, loss};
  }
  NanoConfig config;
  nn::Embedding wte{nullptr}, wpe{nullptr};
  nn::ModuleList h;
  nn::LayerNorm ln_f{nullptr};
  nn::Linear lm_head{nullptr};
};
TORCH_MODULE(NanoGPT);

/// Decay for matrices, none for vectors.
std::vector<torch::optim::OptimizerParamGroup> decay_groups(const nn::Module& model) {
  Tensors decay, no_decay;
  for (const auto& p : model.parameters()) {
    if (p.requires_grad()) (p.dim() >= 2 ? decay : no_decay).push_back(p);
  }
  const auto options = [](double weight_decay) {
    return std::make_unique<torch::optim::AdamWOptions>(
        torch::optim::AdamWOptions(1e-2).betas({0.9, 0.95}).weight_decay(weight_decay));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(decay, options(0.1));
  groups.emplace_back(no_decay, options(0.0));
  return groups;
}

void train_nano_gpt(Device& device, bool optimizer_after, bool torchs_clip) {
  const NanoConfig config;
  auto model = Device::make(7, [&] { return NanoGPT(config); });
  device.leave_out("lm_head.weight");
  const auto batch = [&](int step) {
    return device.part(classes({2, 7}, config.vocab_size, step));
  };
  std::unique_ptr<torch::optim::AdamW> optimizer;
  const auto make_optimizer = [&] {
    optimizer = std::make_unique<torch::optim::AdamW>(decay_groups(*model),
                                                      torch::optim::AdamWOptions(1e-2));
  };
  if (!optimizer_after) make_optimizer();
  const auto parallel = device.initialize(model, [&] { model->forward(batch(0), batch(1)); });
  if (optimizer_after) make_optimizer();
  EXPECT_TRUE(model->lm_head->weight.is_same(model->wte->weight));
  Replica replica(device, model);
  for (int step = 0; step < 4; ++step) {
    const double lr = 1e-2 * 0.5 * (1.0 + std::cos(M_PI * step / 6.0));
    for (auto& group : optimizer->param_groups()) {
      static_cast<torch::optim::AdamWOptions&>(group.options()).lr(lr);
    }
    optimizer->zero_grad();
    const auto [logits, loss] = replica.forward(batch(step), batch(step + 1));
    loss.backward();
    device.note_mean("loss", loss);
    device.note_rows("logits", logits);
    device.note_gradients("model", *model);
    device.note("norm", torchs_clip || !parallel
                            ? torch::nn::utils::clip_grad_norm_(model->parameters(), 0.5)
                            : parallel->clip_grad_norm_(0.5));
    optimizer->step();
    device.note_state("model", *model);
  }
  // Generation: the last position's logits, no labels.
  model->eval();
  const torch::NoGradGuard no_grad;
  Tensor idx = classes({2, 3}, config.vocab_size, 0);
  for (int i = 0; i < 3; ++i) {
    const Tensor logits = model->forward(idx).first.select(1, -1) / 0.8;
    device.note("probabilities", torch::softmax(logits, -1));
    const Tensor best = std::get<1>(torch::topk(torch::softmax(logits, -1), 1));
    idx = torch::cat({idx, oslo::full_tensor(best)}, 1);
  }
  device.note("generated", idx);
}

void nano_gpt_optimizer_after(Device& device) {
  train_nano_gpt(device, true, false);
}
TRAINING_PROGRAM(nano_gpt_optimizer_after);
void nano_gpt_torchs_clip(Device& device) {
  train_nano_gpt(device, true, true);
}
TRAINING_PROGRAM(nano_gpt_torchs_clip);
void nano_gpt_optimizer_before(Device& device) {
  train_nano_gpt(device, false, true);
}
TRAINING_PROGRAM(nano_gpt_optimizer_before);

}  // namespace
}  // namespace programs
