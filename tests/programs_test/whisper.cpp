// Whisper's habits of types and devices: what is kept whole is taken to where the rest is.
#include "tests/programs_test/training_program.h"

namespace programs {
namespace {

namespace nn = torch::nn;

struct WhisperAttentionImpl : nn::Module {
  WhisperAttentionImpl(int64_t n_state, int64_t n_head)
      : query(register_module("query", nn::Linear(n_state, n_state))),
        key(register_module("key", nn::Linear(nn::LinearOptions(n_state, n_state).bias(false)))),
        value(register_module("value", nn::Linear(n_state, n_state))),
        out(register_module("out", nn::Linear(n_state, n_state))),
        n_head(n_head) {}
  Tensor forward(const Tensor& x, const Tensor& xa = {}, const Tensor& mask = {}) {
    const Tensor q = query(x), k = key(xa.defined() ? xa : x), v = value(xa.defined() ? xa : x);
    const double scale = std::pow(double(q.size(-1)) / double(n_head), -0.25);
    const auto heads = [&](const Tensor& t) { return t.view({t.size(0), t.size(1), n_head, -1}); };
    Tensor qk = torch::matmul(heads(q).permute({0, 2, 1, 3}) * scale,
                              heads(k).permute({0, 2, 3, 1}) * scale);
    if (mask.defined()) {
      using torch::indexing::Slice;
      const auto n = q.size(1);
      qk = qk + mask.index({Slice(0, n), Slice(0, n)}).to(x.device());
    }
    const Tensor w = torch::softmax(qk, -1).to(q.dtype());
    return out(torch::matmul(w, heads(v).permute({0, 2, 1, 3})).permute({0, 2, 1, 3}).flatten(2));
  }
  nn::Linear query, key, value, out;
  int64_t n_head;
};
TORCH_MODULE(WhisperAttention);

struct WhisperBlockImpl : nn::Module {
  WhisperBlockImpl(int64_t n_state, int64_t n_head, bool cross)
      : attn(register_module("attn", WhisperAttention(n_state, n_head))),
        attn_ln(register_module("attn_ln", nn::LayerNorm(nn::LayerNormOptions({n_state})))),
        mlp(register_module("mlp", nn::Sequential(nn::Linear(n_state, 4 * n_state), nn::GELU(),
                                                  nn::Linear(4 * n_state, n_state)))),
        mlp_ln(register_module("mlp_ln", nn::LayerNorm(nn::LayerNormOptions({n_state})))) {
    if (!cross) return;
    cross_attn = register_module("cross_attn", WhisperAttention(n_state, n_head));
    cross_attn_ln =
        register_module("cross_attn_ln", nn::LayerNorm(nn::LayerNormOptions({n_state})));
  }
  Tensor forward(Tensor x, const Tensor& xa = {}, const Tensor& mask = {}) {
    x = x + attn(attn_ln(x), Tensor(), mask);
    if (cross_attn) x = x + cross_attn(cross_attn_ln(x), xa);
    return x + mlp->forward(mlp_ln(x));
  }
  WhisperAttention attn;
  nn::LayerNorm attn_ln;
  nn::Sequential mlp;
  nn::LayerNorm mlp_ln;
  WhisperAttention cross_attn{nullptr};
  nn::LayerNorm cross_attn_ln{nullptr};
};
TORCH_MODULE(WhisperBlock);

struct WhisperImpl : nn::Module {
  static constexpr int64_t kMels = 5, kState = 12, kHeads = 3, kVocab = 23, kContext = 6;
  WhisperImpl()
      : conv1(register_module("conv1", nn::Conv1d(nn::Conv1dOptions(kMels, kState, 3).padding(1)))),
        conv2(register_module(
            "conv2", nn::Conv1d(nn::Conv1dOptions(kState, kState, 3).stride(2).padding(1)))),
        audio(register_module("audio", WhisperBlock(kState, kHeads, false))),
        ln_post(register_module("ln_post", nn::LayerNorm(nn::LayerNormOptions({kState})))),
        token_embedding(register_module("token_embedding", nn::Embedding(kVocab, kState))),
        text(register_module("text", WhisperBlock(kState, kHeads, true))),
        ln(register_module("ln", nn::LayerNorm(nn::LayerNormOptions({kState})))) {
    positions = register_buffer("positions", numbers({8, kState}, 2));
    positional_embedding =
        register_parameter("positional_embedding", numbers({kContext, kState}, 3) * 0.1);
    // Not registered, so that it stays on the CPU when the model moves.
    mask = torch::full({kContext, kContext}, -std::numeric_limits<double>::infinity()).triu_(1);
  }
  Tensor forward(const Tensor& mel, const Tensor& tokens) {
    using torch::indexing::Slice;
    Tensor xa = torch::gelu(conv2(torch::gelu(conv1(mel)))).permute({0, 2, 1});
    xa = (xa + positions.index({Slice(0, xa.size(1))}).to(mel.device())).to(mel.dtype());
    xa = ln_post(audio(xa));
    Tensor x = token_embedding(tokens) + positional_embedding.index({Slice(0, tokens.size(-1))})
                                             .to(xa.options())
                                             .to(tokens.device());
    x = text(x.to(xa.dtype()), xa, mask);
    x = ln(x);
    return torch::matmul(x, token_embedding->weight.to(x.dtype()).transpose(0, 1))
        .to(torch::kDouble);
  }
  nn::Conv1d conv1, conv2;
  WhisperBlock audio;
  nn::LayerNorm ln_post;
  nn::Embedding token_embedding;
  WhisperBlock text;
  nn::LayerNorm ln;
  Tensor positions, positional_embedding, mask;
};
TORCH_MODULE(Whisper);

void whisper(Device& device) {
  auto model = Device::make(8, [] { return Whisper(); });
  const auto mel = [&](int step) {
    return device.part(numbers({2, Whisper::Impl::kMels, 15}, step));
  };
  const auto tokens = [&](int step) {
    return device.part(classes({2, 5}, Whisper::Impl::kVocab, step));
  };
  const auto parallel = device.initialize(model, [&] { model->forward(mel(0), tokens(0)); });
  Replica replica(device, model);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const auto train = [&] {
      const Tensor logits = replica.forward(mel(step), tokens(step));
      const Tensor loss =
          nn::functional::cross_entropy(logits.flatten(0, 1), tokens(step + 1).flatten());
      loss.backward();
      device.note_mean("loss", loss);
    };
    if (parallel && step == 0) {
      parallel->count(train);
      EXPECT_THAT(parallel->plan().to_string(),
                  testing::Not(testing::HasSubstr("could not be run on shapes")));
      EXPECT_THAT(parallel->plan().gathers, testing::IsEmpty()) << parallel->plan().to_string();
    } else {
      train();
    }
    device.note_gradients("model", *model);
    optimizer.step();
  }
  device.note_model("model", *model);
}
TRAINING_PROGRAM(whisper);

}  // namespace
}  // namespace programs
