#pragma once

#include <torch/torch.h>

// A conditional U-Net: GroupNorm and SiLU, max pooling down, transposed convolution and
// interpolation up, skips by cat, the condition scales and shifts channels, attention over pixels
// at the bottom.
namespace models::unet {

namespace F = torch::nn::functional;

struct Options {
  int64_t in_channels = 2, base = 8, groups = 4, condition = 6, out_channels = 3;
};

inline torch::nn::Conv2d conv3x3(int64_t in, int64_t out) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1));
}

struct ResBlockImpl : torch::nn::Module {
  ResBlockImpl(int64_t in, int64_t out, int64_t condition, int64_t groups) {
    conv1 = register_module("conv1", conv3x3(in, out));
    norm1 = register_module("norm1", torch::nn::GroupNorm(groups, out));
    film = register_module("film", torch::nn::Linear(condition, 2 * out));
    conv2 = register_module("conv2", conv3x3(out, out));
    norm2 = register_module("norm2", torch::nn::GroupNorm(groups, out));
    if (in != out) {
      skip = register_module("skip", torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 1)));
    }
  }

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& condition) {
    auto h = F::silu(norm1(conv1(x)));
    const auto scale_shift = film(condition).unsqueeze(-1).unsqueeze(-1).chunk(2, 1);
    h = h * (scale_shift[0] + 1) + scale_shift[1];
    h = F::silu(norm2(conv2(h)));
    return h + (skip.is_empty() ? x : skip(x));
  }

  torch::nn::Conv2d conv1{nullptr}, conv2{nullptr}, skip{nullptr};
  torch::nn::GroupNorm norm1{nullptr}, norm2{nullptr};
  torch::nn::Linear film{nullptr};
};
TORCH_MODULE(ResBlock);

struct PixelAttentionImpl : torch::nn::Module {
  PixelAttentionImpl(int64_t channels, int64_t groups) {
    norm = register_module("norm", torch::nn::GroupNorm(groups, channels));
    to_qkv = register_module("to_qkv", torch::nn::Linear(channels, channels * 3));
    to_out = register_module("to_out", torch::nn::Linear(channels, channels));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto B = x.size(0), C = x.size(1), H = x.size(2), W = x.size(3);
    const auto pixels = norm(x).view({B, C, H * W}).transpose(1, 2);
    const auto qkv = to_qkv(pixels).chunk(3, -1);
    const auto weights = torch::bmm(qkv[0], qkv[1].transpose(1, 2)).div(std::sqrt(double(C)));
    const auto mixed = torch::bmm(weights.softmax(-1), qkv[2]);
    return x + to_out(mixed).transpose(1, 2).reshape({B, C, H, W});
  }

  torch::nn::GroupNorm norm{nullptr};
  torch::nn::Linear to_qkv{nullptr}, to_out{nullptr};
};
TORCH_MODULE(PixelAttention);

struct UNetImpl : torch::nn::Module {
  explicit UNetImpl(const Options& o = {}) {
    const auto c = o.base;
    inc = register_module("inc", ResBlock(o.in_channels, c, o.condition, o.groups));
    down1 = register_module("down1", ResBlock(c, 2 * c, o.condition, o.groups));
    down2 = register_module("down2", ResBlock(2 * c, 2 * c, o.condition, o.groups));
    middle = register_module("middle", PixelAttention(2 * c, o.groups));
    expand = register_module(
        "expand",
        torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(2 * c, 2 * c, 2).stride(2)));
    up1 = register_module("up1", ResBlock(4 * c, c, o.condition, o.groups));
    up2 = register_module("up2", ResBlock(2 * c, c, o.condition, o.groups));
    outc =
        register_module("outc", torch::nn::Conv2d(torch::nn::Conv2dOptions(c, o.out_channels, 1)));
  }

  torch::Tensor forward(const torch::Tensor& image, const torch::Tensor& condition) {
    const auto x1 = inc(image, condition);
    const auto x2 = down1(torch::max_pool2d(x1, 2), condition);
    auto x = down2(F::avg_pool2d(x2, F::AvgPool2dFuncOptions(2)), condition);
    x = middle(x);
    x = up1(torch::cat({expand(x), x2}, 1), condition);
    x = F::interpolate(x, F::InterpolateFuncOptions()
                              .scale_factor(std::vector<double>{2, 2})
                              .mode(torch::kBilinear)
                              .align_corners(false));
    x = up2(torch::cat({x1, x}, 1), condition);
    return outc(x);
  }

  ResBlock inc{nullptr}, down1{nullptr}, down2{nullptr}, up1{nullptr}, up2{nullptr};
  PixelAttention middle{nullptr};
  torch::nn::ConvTranspose2d expand{nullptr};
  torch::nn::Conv2d outc{nullptr};
};
TORCH_MODULE(UNet);

}  // namespace models::unet
