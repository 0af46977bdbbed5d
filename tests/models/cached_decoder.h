#pragma once

#include <torch/torch.h>

#include <cmath>
#include <vector>

// A decoder by an author who saves memory: in-place operators and views wherever autograd lets him,
// bias and scale folded by baddbmm, and a key-value cache that is written by slices. Trained at
// once, evaluated a few tokens at a time.
namespace models {

struct CachedDecoderOptions {
  int64_t vocabulary = 41, hidden = 40, heads = 4, inner = 90, layers = 2, positions = 16,
          chunk = 3;
};

struct KeyValueCache {
  torch::Tensor keys, values;  ///< (batch * heads, positions, head dimension)
};

struct CachedAttentionImpl : torch::nn::Module {
  explicit CachedAttentionImpl(const CachedDecoderOptions& o)
      : heads(o.heads), head_dim(o.hidden / o.heads), positions(o.positions) {
    in_proj = register_module("in_proj", torch::nn::Linear(o.hidden, 3 * o.hidden));
    out_proj = register_module("out_proj", torch::nn::Linear(o.hidden, o.hidden));
  }

  torch::Tensor forward(const torch::Tensor& x, KeyValueCache* cache, int64_t past) {
    const auto B = x.size(0), T = x.size(1);
    auto qkv = in_proj(x).view({B, T, 3, heads, head_dim}).permute({2, 0, 3, 1, 4});
    auto q = qkv[0].reshape({B * heads, T, head_dim});
    auto k = qkv[1].reshape({B * heads, T, head_dim});
    auto v = qkv[2].reshape({B * heads, T, head_dim});
    q.mul_(1.0 / std::sqrt(static_cast<double>(head_dim)));
    if (cache != nullptr) {
      if (!cache->keys.defined()) {
        cache->keys = k.new_zeros({B * heads, positions, head_dim});
        cache->values = v.new_zeros({B * heads, positions, head_dim});
      }
      cache->keys.slice(1, past, past + T).copy_(k);
      cache->values.narrow(1, past, T) = v;  // LibTorch's way to write through a view
      k = cache->keys.slice(1, 0, past + T);
      v = cache->values.slice(1, 0, past + T);
    }
    auto hidden = torch::ones({T, past + T}, torch::kBool).triu_(past + 1);
    auto mask = torch::zeros({1, T, past + T}, x.options()).masked_fill_(hidden, -1e9);
    auto scores = torch::baddbmm(mask, q, k.transpose(1, 2));
    scores.sub_(scores.detach().amax(-1, true)).exp_();
    auto y = torch::bmm(scores, v);
    y = y.div_(scores.sum(-1, true));
    auto merged = x.new_empty({B, T, heads, head_dim});
    merged.copy_(y.view({B, heads, T, head_dim}).transpose(1, 2));
    return out_proj(merged.view({B, T, -1}));
  }

  int64_t heads, head_dim, positions;
  torch::nn::Linear in_proj{nullptr}, out_proj{nullptr};
};
TORCH_MODULE(CachedAttention);

struct CachedBlockImpl : torch::nn::Module {
  explicit CachedBlockImpl(const CachedDecoderOptions& o) {
    norm1 = register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.hidden})));
    attention = register_module("attention", CachedAttention(o));
    norm2 = register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.hidden})));
    fc1 = register_module("fc1", torch::nn::Linear(o.hidden, o.inner));
    fc2 = register_module("fc2", torch::nn::Linear(o.inner, o.hidden));
  }

  torch::Tensor forward(const torch::Tensor& x, KeyValueCache* cache, int64_t past) {
    auto y = attention(norm1(x), cache, past);
    y.add_(x);
    auto inner = fc1(norm2(y)).relu_();
    return fc2(inner).add_(y);
  }

  torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
  CachedAttention attention{nullptr};
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(CachedBlock);

struct CachedDecoderImpl : torch::nn::Module {
  explicit CachedDecoderImpl(const CachedDecoderOptions& options = {}) : o(options) {
    tokens = register_module("tokens", torch::nn::Embedding(o.vocabulary, o.hidden));
    positions = register_parameter("positions", torch::randn({o.positions, o.hidden}).mul_(0.02));
    blocks = register_module("blocks", torch::nn::ModuleList());
    for (int64_t i = 0; i < o.layers; ++i) blocks->push_back(CachedBlock(o));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.hidden})));
    head = register_module("head", torch::nn::Linear(o.hidden, o.vocabulary));
    seen = register_buffer("seen", torch::zeros({1}, torch::kLong));
  }

  torch::Tensor step(const torch::Tensor& ids, std::vector<KeyValueCache>* caches, int64_t past) {
    auto x = tokens(ids);
    x.add_(positions.narrow(0, past, ids.size(1)));
    for (size_t i = 0; i < blocks->size(); ++i) {
      auto* cache = caches != nullptr ? &caches->at(i) : nullptr;
      x = blocks[i]->as<CachedBlock>()->forward(x, cache, past);
    }
    return head(norm(x));
  }

  torch::Tensor forward(const torch::Tensor& ids) {
    seen.add_(ids.size(1));
    if (is_training()) return step(ids, nullptr, 0);
    std::vector<KeyValueCache> caches(blocks->size());
    auto logits = torch::empty({ids.size(0), ids.size(1), o.vocabulary}, positions.options());
    for (int64_t past = 0; past < ids.size(1); past += o.chunk) {
      const auto length = std::min(o.chunk, ids.size(1) - past);
      logits.narrow(1, past, length).copy_(step(ids.narrow(1, past, length), &caches, past));
    }
    return logits;
  }

  CachedDecoderOptions o;
  torch::nn::Embedding tokens{nullptr};
  torch::Tensor positions, seen;
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(CachedDecoder);

}  // namespace models
