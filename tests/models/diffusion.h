#pragma once

#include <torch/torch.h>

#include <cmath>

// A piece of a denoising diffusion network: sinusoidal time embedding through an MLP, residual
// blocks that scale and shift by it (FiLM), attention over pixels between them.
namespace models {

inline torch::Tensor timestep_embedding(const torch::Tensor& t, int64_t dim) {
  const auto half = dim / 2;
  auto emb = torch::arange(half, torch::kFloat) * -(std::log(10000.0) / (half - 1));
  emb = torch::exp(emb);
  emb = t.unsqueeze(1) * emb.unsqueeze(0);
  emb = torch::cat({torch::sin(emb), torch::cos(emb)}, 1);
  if (dim % 2 == 1)
    emb = torch::nn::functional::pad(emb, torch::nn::functional::PadFuncOptions({0, 1}));
  return emb;
}

struct ResnetBlockImpl : torch::nn::Module {
  ResnetBlockImpl(int64_t in, int64_t out, int64_t time, int64_t groups) {
    norm1 = register_module("norm1", torch::nn::GroupNorm(groups, in));
    conv1 = register_module("conv1",
                            torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1)));
    temb_proj = register_module("temb_proj", torch::nn::Linear(time, 2 * out));
    norm2 = register_module("norm2", torch::nn::GroupNorm(groups, out));
    conv2 = register_module("conv2",
                            torch::nn::Conv2d(torch::nn::Conv2dOptions(out, out, 3).padding(1)));
    if (in != out) {
      nin_shortcut =
          register_module("nin_shortcut", torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 1)));
    }
  }

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& temb) {
    auto h = conv1(torch::silu(norm1(x)));
    const auto scale_shift =
        temb_proj(torch::silu(temb)).unsqueeze(-1).unsqueeze(-1).chunk(2, /*dim=*/1);
    h = norm2(h) * (scale_shift[0] + 1) + scale_shift[1];
    h = conv2(torch::silu(h));
    return h + (nin_shortcut.is_empty() ? x : nin_shortcut(x));
  }

  torch::nn::GroupNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr}, nin_shortcut{nullptr};
  torch::nn::Linear temb_proj{nullptr};
};
TORCH_MODULE(ResnetBlock);

struct PixelAttentionImpl : torch::nn::Module {
  PixelAttentionImpl(int64_t channels, int64_t heads, int64_t groups) : heads(heads) {
    norm = register_module("norm", torch::nn::GroupNorm(groups, channels));
    qkv = register_module("qkv", torch::nn::Linear(channels, 3 * channels));
    proj_out = register_module("proj_out", torch::nn::Linear(channels, channels));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto b = x.size(0), c = x.size(1), h = x.size(2), w = x.size(3);
    const auto tokens = norm(x).view({b, c, h * w}).transpose(1, 2);
    const auto parts = qkv(tokens).chunk(3, -1);
    const auto split = [&](const torch::Tensor& t) {
      return t.reshape({b, h * w, heads, c / heads}).transpose(1, 2);
    };
    const auto scale = 1.0 / std::sqrt(std::sqrt(static_cast<double>(c) / heads));
    const auto weights =
        torch::matmul(split(parts[0]) * scale, (split(parts[1]) * scale).transpose(-1, -2))
            .softmax(-1);
    const auto out = torch::matmul(weights, split(parts[2])).transpose(1, 2).reshape({b, h * w, c});
    return x + proj_out(out).transpose(1, 2).reshape({b, c, h, w});
  }

  int64_t heads;
  torch::nn::GroupNorm norm{nullptr};
  torch::nn::Linear qkv{nullptr}, proj_out{nullptr};
};
TORCH_MODULE(PixelAttention);

struct DiffusionBlockImpl : torch::nn::Module {
  DiffusionBlockImpl(int64_t image_channels = 3, int64_t channels = 20, int64_t heads = 4)
      : channels(channels) {
    const int64_t time = 4 * channels;
    time_embed = register_module(
        "time_embed", torch::nn::Sequential(torch::nn::Linear(channels, time), torch::nn::SiLU(),
                                            torch::nn::Linear(time, time)));
    conv_in = register_module(
        "conv_in",
        torch::nn::Conv2d(torch::nn::Conv2dOptions(image_channels, channels, 3).padding(1)));
    block1 = register_module("block1", ResnetBlock(channels, 2 * channels, time, 5));
    attention = register_module("attention", PixelAttention(2 * channels, heads, 5));
    block2 = register_module("block2", ResnetBlock(2 * channels, channels, time, 5));
    norm_out = register_module("norm_out", torch::nn::GroupNorm(5, channels));
    conv_out = register_module(
        "conv_out",
        torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, image_channels, 3).padding(1)));
  }

  torch::Tensor forward(const torch::Tensor& noisy, const torch::Tensor& t) {
    const auto temb = time_embed->forward(timestep_embedding(t, channels).to(noisy.scalar_type()));
    auto h = block1(conv_in(noisy), temb);
    h = attention(h);
    h = block2(h, temb);
    return conv_out(torch::silu(norm_out(h)));
  }

  int64_t channels;
  torch::nn::Sequential time_embed{nullptr};
  torch::nn::Conv2d conv_in{nullptr}, conv_out{nullptr};
  ResnetBlock block1{nullptr}, block2{nullptr};
  PixelAttention attention{nullptr};
  torch::nn::GroupNorm norm_out{nullptr};
};
TORCH_MODULE(DiffusionBlock);

}  // namespace models
