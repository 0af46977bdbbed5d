#pragma once

#include <torch/torch.h>

#include <cmath>
#include <vector>

// Mamba as its reference writes it: a causal depthwise convolution, step sizes through a low-rank
// projection and a softplus, and the selective scan as a loop over time. The whole configuration is
// public members; the residual stream travels beside the hidden states.
struct MambaConfig {
  int64_t vocab_size = 37;
  int64_t d_model = 22;
  int64_t n_layer = 2;
  int64_t d_state = 5;
  int64_t d_conv = 4;
  int64_t d_inner = 33;
  int64_t dt_rank = 3;
  bool conv_bias = true;
};

class MambaRMSNormImpl : public torch::nn::Module {
 public:
  explicit MambaRMSNormImpl(int64_t d, double eps_ = 1e-5)
      : weight(register_parameter("weight", torch::ones({d}))), eps(eps_) {}
  torch::Tensor forward(torch::Tensor x) {
    return x * torch::rsqrt(x.pow(2).mean(-1, true) + eps) * weight;
  }
  torch::Tensor weight;
  double eps;
};
TORCH_MODULE(MambaRMSNorm);

class MambaMixerImpl : public torch::nn::Module {
 public:
  explicit MambaMixerImpl(const MambaConfig& cfg) : args(cfg) {
    in_proj = register_module(
        "in_proj",
        torch::nn::Linear(torch::nn::LinearOptions(cfg.d_model, cfg.d_inner * 2).bias(false)));
    conv1d = register_module(
        "conv1d", torch::nn::Conv1d(torch::nn::Conv1dOptions(cfg.d_inner, cfg.d_inner, cfg.d_conv)
                                        .bias(cfg.conv_bias)
                                        .groups(cfg.d_inner)
                                        .padding(cfg.d_conv - 1)));
    x_proj = register_module(
        "x_proj",
        torch::nn::Linear(
            torch::nn::LinearOptions(cfg.d_inner, cfg.dt_rank + cfg.d_state * 2).bias(false)));
    dt_proj = register_module("dt_proj", torch::nn::Linear(cfg.dt_rank, cfg.d_inner));
    const auto A = torch::arange(1, cfg.d_state + 1, torch::kFloat).repeat({cfg.d_inner, 1});
    A_log = register_parameter("A_log", torch::log(A));
    D = register_parameter("D", torch::ones(cfg.d_inner));
    out_proj = register_module(
        "out_proj",
        torch::nn::Linear(torch::nn::LinearOptions(cfg.d_inner, cfg.d_model).bias(false)));

    torch::NoGradGuard guard;
    const double std = std::pow(double(cfg.dt_rank), -0.5);
    torch::nn::init::uniform_(dt_proj->weight, -std, std);
    const auto dt =
        torch::exp(torch::rand(cfg.d_inner) * (std::log(0.1) - std::log(1e-3)) + std::log(1e-3));
    dt_proj->bias.copy_(dt + torch::log(-torch::expm1(-dt)));  // the inverse of softplus
  }

  torch::Tensor forward(torch::Tensor x) {
    const int64_t l = x.size(1);
    auto x_and_res = in_proj->forward(x).split({args.d_inner, args.d_inner}, -1);
    auto u = x_and_res[0];
    auto res = x_and_res[1];
    u = u.transpose(1, 2);
    u = conv1d->forward(u).index({"...", torch::indexing::Slice(0, l)});
    u = u.transpose(1, 2);
    u = torch::silu(u);
    auto y = ssm(u);
    y = y * torch::silu(res);
    return out_proj->forward(y);
  }

 private:
  torch::Tensor ssm(torch::Tensor x) {
    auto A = -torch::exp(A_log);
    auto x_dbl = x_proj->forward(x);
    auto parts = x_dbl.split({args.dt_rank, args.d_state, args.d_state}, -1);
    auto delta = torch::softplus(dt_proj->forward(parts[0]));
    return selective_scan(x, delta, A, parts[1], parts[2]);
  }

  torch::Tensor selective_scan(torch::Tensor u, torch::Tensor delta, torch::Tensor A,
                               torch::Tensor B, torch::Tensor C) {
    auto deltaA = torch::exp(torch::einsum("bld,dn->bldn", {delta, A}));
    auto deltaB_u = torch::einsum("bld,bln,bld->bldn", {delta, B, u});
    auto h = torch::zeros({u.size(0), args.d_inner, args.d_state}, deltaA.options());
    std::vector<torch::Tensor> ys;
    for (int64_t i = 0; i < u.size(1); ++i) {
      h = deltaA.index({torch::indexing::Slice(), i}) * h +
          deltaB_u.index({torch::indexing::Slice(), i});
      auto y = torch::matmul(h, C.index({torch::indexing::Slice(), i}).unsqueeze(-1).to(h.dtype()));
      ys.push_back(y.squeeze(-1));
    }
    return torch::stack(ys, 1) + u * D;
  }

 public:
  MambaConfig args;
  torch::nn::Linear in_proj{nullptr}, x_proj{nullptr}, dt_proj{nullptr}, out_proj{nullptr};
  torch::nn::Conv1d conv1d{nullptr};
  torch::Tensor A_log, D;
};
TORCH_MODULE(MambaMixer);

class MambaBlockImpl : public torch::nn::Module {
 public:
  explicit MambaBlockImpl(const MambaConfig& cfg) : mixer(cfg), norm(cfg.d_model) {
    register_module("mixer", mixer);
    register_module("norm", norm);
  }
  std::pair<torch::Tensor, torch::Tensor> forward(torch::Tensor hidden, torch::Tensor residual) {
    residual = residual.defined() ? hidden + residual : hidden;
    return {mixer(norm(residual)), residual};
  }
  MambaMixer mixer;
  MambaRMSNorm norm;
};
TORCH_MODULE(MambaBlock);

class MambaLMImpl : public torch::nn::Module {
 public:
  explicit MambaLMImpl(const MambaConfig& cfg = {}) : norm_f(cfg.d_model) {
    embedding = register_module("embedding", torch::nn::Embedding(cfg.vocab_size, cfg.d_model));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < cfg.n_layer; ++i) layers->push_back(MambaBlock(cfg));
    register_module("norm_f", norm_f);
  }

  torch::Tensor forward(torch::Tensor input_ids) {
    torch::Tensor hidden = embedding(input_ids), residual;
    for (size_t i = 0; i < layers->size(); ++i) {
      std::tie(hidden, residual) = layers[i]->as<MambaBlock>()->forward(hidden, residual);
    }
    return torch::linear(norm_f(hidden + residual), embedding->weight);
  }

  torch::nn::Embedding embedding{nullptr};
  torch::nn::ModuleList layers{nullptr};
  MambaRMSNorm norm_f;
};
TORCH_MODULE(MambaLM);
