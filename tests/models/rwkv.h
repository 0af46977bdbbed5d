#pragma once

#include <torch/torch.h>

#include <string>
#include <tuple>

// RWKV-5 ("Eagle"): tokens are mixed with the one before through learned weights, the state is a
// matrix a head that decays channel by channel. Training uses the parallel form (powers of the
// decay below the diagonal), evaluation the recurrence over time with outer products. An author who
// keeps every matrix as a raw parameter and never uses torch::nn::Linear.
namespace models::rwkv {

struct Args {
  int64_t n_embd = 21, n_layer = 2, head_size = 7, dim_ffn = 46, vocab_size = 41;
};

inline torch::Tensor matrix(int64_t rows, int64_t columns) {
  auto w = torch::empty({rows, columns});
  torch::nn::init::orthogonal_(w, 0.8);
  return w;
}

class TimeMix : public torch::nn::Module {
 public:
  TimeMix(const Args& args, int64_t layer_id)
      : n_head(args.n_embd / args.head_size), head_size(args.head_size) {
    const auto C = args.n_embd;
    const double ratio = 1.0 - double(layer_id) / double(args.n_layer);
    const auto ddd = torch::arange(C, torch::kFloat).div(double(C)).view({1, 1, C});
    time_mix_k = register_parameter("time_mix_k", torch::pow(ddd, ratio));
    time_mix_v = register_parameter("time_mix_v", torch::pow(ddd, ratio) + 0.3 * (1 - ratio));
    time_mix_r = register_parameter("time_mix_r", torch::pow(ddd, 0.5 * ratio));
    time_mix_g = register_parameter("time_mix_g", torch::pow(ddd, 0.5 * ratio));
    time_decay = register_parameter("time_decay", torch::linspace(-3, 0.5, C).view({n_head, -1}));
    time_faaaa = register_parameter("time_faaaa", 0.3 * torch::randn({n_head, head_size}));
    receptance = register_parameter("receptance", matrix(C, C));
    key = register_parameter("key", matrix(C, C));
    value = register_parameter("value", matrix(C, C));
    gate = register_parameter("gate", matrix(C, C));
    output = register_parameter("output", matrix(C, C));
    ln_x = register_module("ln_x", torch::nn::GroupNorm(n_head, C));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto B = x.size(0), T = x.size(1), C = x.size(2);
    const auto xx = torch::constant_pad_nd(x, {0, 0, 1, -1});  // the token before
    const auto xk = x * time_mix_k + xx * (1 - time_mix_k);
    const auto xv = x * time_mix_v + xx * (1 - time_mix_v);
    const auto xr = torch::lerp(xx, x.to(xx.dtype()), time_mix_r.to(xx.dtype()));
    const auto xg = x * time_mix_g + xx * (1 - time_mix_g);

    const auto heads = [&](const torch::Tensor& y) {
      return y.view({B, T, n_head, head_size}).transpose(1, 2);
    };
    const auto r = heads(xr.matmul(receptance)), k = heads(xk.matmul(key)),
               v = heads(xv.matmul(value));
    const auto g = torch::silu(xg.matmul(gate));

    auto out = is_training() ? parallel(r, k, v) : recurrent(r, k, v);
    out = out.transpose(1, 2).reshape({B * T, C});
    out = ln_x(out).view({B, T, C});
    return (out * g).matmul(output);
  }

 private:
  /// sum over j < t of r_t (k_j w^(t-1-j)) v_j, plus the present token with its bonus.
  torch::Tensor parallel(const torch::Tensor& r, const torch::Tensor& k, const torch::Tensor& v) {
    const auto T = r.size(2);
    const auto w = torch::exp(-torch::exp(time_decay));  // [head, channel]
    const auto t = torch::arange(T, w.options());
    const auto distance = (t.view({T, 1}) - t - 1).clamp_min(0);
    const auto below = torch::ones({T, T}, w.options()).tril(-1);
    auto decay = torch::pow(w.view({n_head, 1, 1, head_size}), distance.unsqueeze(-1));
    decay = decay * below.unsqueeze(-1);
    decay = decay +
            torch::eye(T, w.options()).unsqueeze(-1) * time_faaaa.view({n_head, 1, 1, head_size});
    const auto scores = torch::einsum("bhti,htji,bhji->bhtj", {r, decay.to(r.dtype()), k});
    return scores.matmul(v);
  }

  torch::Tensor recurrent(const torch::Tensor& r, const torch::Tensor& k, const torch::Tensor& v) {
    const auto B = r.size(0), T = r.size(2);
    const auto w = torch::exp(-torch::exp(time_decay)).unsqueeze(-1);
    const auto u = time_faaaa.unsqueeze(-1);
    auto state = torch::zeros({B, n_head, head_size, head_size}, r.options());
    auto out = torch::empty_like(r);
    for (int64_t t = 0; t < T; ++t) {
      const auto rt = r.select(2, t).unsqueeze(-2), kt = k.select(2, t).unsqueeze(-1),
                 vt = v.select(2, t).unsqueeze(-2);
      const auto at = kt.matmul(vt);
      out.select(2, t) = rt.matmul(u.to(at.dtype()) * at + state).squeeze(-2);
      state = at + w.to(at.dtype()) * state;
    }
    return out;
  }

  int64_t n_head, head_size;
  torch::Tensor time_mix_k, time_mix_v, time_mix_r, time_mix_g, time_decay, time_faaaa;
  torch::Tensor receptance, key, value, gate, output;
  torch::nn::GroupNorm ln_x{nullptr};
};

class ChannelMix : public torch::nn::Module {
 public:
  explicit ChannelMix(const Args& args) {
    time_mix_k = register_parameter("time_mix_k", torch::rand({1, 1, args.n_embd}));
    time_mix_r = register_parameter("time_mix_r", torch::rand({1, 1, args.n_embd}));
    key = register_parameter("key", matrix(args.n_embd, args.dim_ffn));
    receptance = register_parameter("receptance", matrix(args.n_embd, args.n_embd));
    value = register_parameter("value", matrix(args.dim_ffn, args.n_embd));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    namespace F = torch::nn::functional;
    const auto xx = F::pad(x, F::PadFuncOptions({0, 0, 1, -1}));
    const auto xk = x * time_mix_k + xx * (1 - time_mix_k);
    const auto xr = x * time_mix_r + xx * (1 - time_mix_r);
    const auto k = torch::square(torch::relu(torch::matmul(xk, key)));
    return torch::sigmoid(torch::matmul(xr, receptance)) * torch::matmul(k, value);
  }

 private:
  torch::Tensor time_mix_k, time_mix_r, key, receptance, value;
};

class Rwkv : public torch::nn::Module {
 public:
  explicit Rwkv(const Args& args = {}) : args_(args) {
    emb = register_parameter("emb", 0.5 * torch::randn({args.vocab_size, args.n_embd}));
    ln0 = norm("ln0");
    for (int64_t i = 0; i < args.n_layer; ++i) {
      const auto id = "blocks" + std::to_string(i) + "_";
      blocks.push_back({norm(id + "ln1"), norm(id + "ln2"),
                        register_module(id + "att", std::make_shared<TimeMix>(args, i)),
                        register_module(id + "ffn", std::make_shared<ChannelMix>(args))});
    }
    ln_out = norm("ln_out");
    head = register_parameter("head", matrix(args.n_embd, args.vocab_size));
  }

  torch::Tensor forward(const torch::Tensor& ids) {
    auto x = ln0(emb.index({ids}));
    for (auto& [ln1, ln2, att, ffn] : blocks) {
      x = x + att->forward(ln1(x));
      x = x + ffn->forward(ln2(x));
    }
    return torch::tensordot(ln_out(x), head, {2}, {0});
  }

 private:
  torch::nn::LayerNorm norm(const std::string& name) {
    return register_module(name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({args_.n_embd})));
  }

  struct Block {
    torch::nn::LayerNorm ln1, ln2;
    std::shared_ptr<TimeMix> att;
    std::shared_ptr<ChannelMix> ffn;
  };
  Args args_;
  torch::Tensor emb, head;
  torch::nn::LayerNorm ln0{nullptr}, ln_out{nullptr};
  std::vector<Block> blocks;
};

}  // namespace models::rwkv
