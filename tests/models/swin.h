#pragma once

#include <torch/torch.h>

#include <cmath>

// Swin as ported line by line from Python: windows by view and permute, a cyclic shift by roll, a
// mask built with slices, a relative bias looked up through a buffer, patches merged by cat.
namespace models::swin {

using torch::indexing::Slice;

struct Options {
  int64_t image = 16, patch = 2, window = 4, hidden = 20, heads = 5, depth = 2, classes = 7;
};

inline torch::Tensor window_partition(const torch::Tensor& x, int64_t window) {
  const auto B = x.size(0), H = x.size(1), W = x.size(2), C = x.size(3);
  const auto windows = x.view({B, H / window, window, W / window, window, C});
  return windows.permute({0, 1, 3, 2, 4, 5}).contiguous().view({-1, window, window, C});
}

inline torch::Tensor window_reverse(const torch::Tensor& windows, int64_t window, int64_t H,
                                    int64_t W) {
  const auto B = windows.size(0) / (H * W / window / window);
  const auto x = windows.view({B, H / window, W / window, window, window, -1});
  return x.permute({0, 1, 3, 2, 4, 5}).contiguous().view({B, H, W, -1});
}

struct WindowAttentionImpl : torch::nn::Module {
  WindowAttentionImpl(int64_t dim, int64_t window, int64_t num_heads)
      : heads(num_heads), scale(std::pow(double(dim / num_heads), -0.5)) {
    qkv = register_module("qkv", torch::nn::Linear(dim, dim * 3));
    proj = register_module("proj", torch::nn::Linear(dim, dim));
    const auto side = 2 * window - 1;
    relative_position_bias_table = register_parameter("relative_position_bias_table",
                                                      torch::randn({side * side, heads}) * 0.02);
    const auto grid = torch::meshgrid({torch::arange(window), torch::arange(window)}, "ij");
    const auto coords = torch::stack(grid).flatten(1);
    auto relative = (coords.unsqueeze(2) - coords.unsqueeze(1)).permute({1, 2, 0}).contiguous();
    relative += window - 1;
    relative.select(2, 0) *= side;
    relative_position_index = register_buffer("relative_position_index", relative.sum(-1));
  }

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& mask) {
    const auto B = x.size(0), N = x.size(1), C = x.size(2);
    const auto packed = qkv(x).reshape({B, N, 3, heads, C / heads}).permute({2, 0, 3, 1, 4});
    const auto q = packed[0] * scale, k = packed[1], v = packed[2];
    auto attn = q.matmul(k.transpose(-2, -1));
    const auto bias =
        relative_position_bias_table.index({relative_position_index.view(-1)}).view({N, N, -1});
    attn = attn + bias.permute({2, 0, 1}).contiguous().unsqueeze(0);
    if (mask.defined()) {
      const auto windows = mask.size(0);
      attn = attn.view({B / windows, windows, heads, N, N}) + mask.unsqueeze(1).unsqueeze(0);
      attn = attn.view({-1, heads, N, N});
    }
    return proj(attn.softmax(-1).matmul(v).transpose(1, 2).reshape({B, N, C}));
  }

  int64_t heads;
  double scale;
  torch::nn::Linear qkv{nullptr}, proj{nullptr};
  torch::Tensor relative_position_bias_table, relative_position_index;
};
TORCH_MODULE(WindowAttention);

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t dim, int64_t resolution, int64_t window_size, int64_t heads, bool shifted)
      : side(resolution), window(window_size), shift(shifted ? window_size / 2 : 0) {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({dim})));
    attn = register_module("attn", WindowAttention(dim, window, heads));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({dim})));
    fc1 = register_module("fc1", torch::nn::Linear(dim, dim * 4));
    fc2 = register_module("fc2", torch::nn::Linear(dim * 4, dim));
    if (shift == 0) return;
    auto image = torch::zeros({1, side, side, 1});
    int64_t region = 0;
    const std::vector<Slice> slices{Slice(0, -window), Slice(-window, -shift),
                                    Slice(-shift, torch::indexing::None)};
    for (const auto& h : slices) {
      for (const auto& w : slices) image.index_put_({Slice(), h, w, Slice()}, region++);
    }
    const auto windows = window_partition(image, window).view({-1, window * window});
    const auto differ = windows.unsqueeze(1) - windows.unsqueeze(2);
    attn_mask = register_buffer("attn_mask", differ.masked_fill(differ != 0, -100.0));
  }

  torch::Tensor forward(torch::Tensor x) {
    const auto B = x.size(0), L = x.size(1), C = x.size(2);
    const auto shortcut = x;
    x = norm1(x).view({B, side, side, C});
    if (shift > 0) x = torch::roll(x, {-shift, -shift}, {1, 2});
    auto windows = window_partition(x, window).view({-1, window * window, C});
    windows = attn(windows, attn_mask).view({-1, window, window, C});
    x = window_reverse(windows, window, side, side);
    if (shift > 0) x = torch::roll(x, {shift, shift}, {1, 2});
    x = shortcut + x.view({B, L, C});
    return x + fc2(torch::gelu(fc1(norm2(x))));
  }

  int64_t side, window, shift;
  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  WindowAttention attn{nullptr};
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
  torch::Tensor attn_mask;
};
TORCH_MODULE(Block);

struct PatchMergingImpl : torch::nn::Module {
  PatchMergingImpl(int64_t dim, int64_t resolution) : side(resolution) {
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({4 * dim})));
    reduction = register_module(
        "reduction", torch::nn::Linear(torch::nn::LinearOptions(4 * dim, 2 * dim).bias(false)));
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto B = tokens.size(0), C = tokens.size(2);
    const auto x = tokens.view({B, side, side, C});
    const Slice even(0, torch::indexing::None, 2), odd(1, torch::indexing::None, 2);
    const auto merged = torch::cat({x.index({Slice(), even, even}), x.index({Slice(), odd, even}),
                                    x.index({Slice(), even, odd}), x.index({Slice(), odd, odd})},
                                   -1);
    return reduction(norm(merged.view({B, -1, 4 * C})));
  }

  int64_t side;
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear reduction{nullptr};
};
TORCH_MODULE(PatchMerging);

struct SwinImpl : torch::nn::Module {
  explicit SwinImpl(const Options& o = {}) {
    const auto side = o.image / o.patch;
    patch_embed = register_module(
        "patch_embed",
        torch::nn::Conv2d(torch::nn::Conv2dOptions(3, o.hidden, o.patch).stride(o.patch)));
    layers = register_module("layers", torch::nn::ModuleList());
    for (int64_t i = 0; i < o.depth; ++i) {
      layers->push_back(Block(o.hidden, side, o.window, o.heads, i % 2 == 1));
    }
    downsample = register_module("downsample", PatchMerging(o.hidden, side));
    last = register_module("last", Block(2 * o.hidden, side / 2, o.window, 2 * o.heads, false));
    norm =
        register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({2 * o.hidden})));
    head = register_module("head", torch::nn::Linear(2 * o.hidden, o.classes));
  }

  torch::Tensor forward(const torch::Tensor& image) {
    auto x = patch_embed(image).flatten(2).transpose(1, 2);
    for (const auto& layer : *layers) x = layer->as<Block>()->forward(x);
    x = norm(last(downsample(x)));
    return head(torch::adaptive_avg_pool1d(x.transpose(1, 2), 1).flatten(1));
  }

  torch::nn::Conv2d patch_embed{nullptr};
  torch::nn::ModuleList layers{nullptr};
  PatchMerging downsample{nullptr};
  Block last{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Swin);

}  // namespace models::swin
