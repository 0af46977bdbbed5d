#pragma once

#include <torch/torch.h>

// MLP-Mixer in the terse style: everything that can be is a Sequential, layers have no names.
namespace models::mixer {

struct Options {
  int64_t channels = 3, patch = 4, image = 12, hidden = 16, tokens_inner = 11, channels_inner = 28,
          layers = 2, classes = 5;
};

inline torch::nn::Sequential mlp(int64_t size, int64_t inner) {
  return torch::nn::Sequential(torch::nn::Linear(size, inner), torch::nn::GELU(),
                               torch::nn::Dropout(0.0), torch::nn::Linear(inner, size));
}

class MixerBlockImpl : public torch::nn::Module {
 public:
  MixerBlockImpl(const Options& o, int64_t tokens)
      : token_norm_(torch::nn::LayerNormOptions({o.hidden})),
        channel_norm_(torch::nn::LayerNormOptions({o.hidden})),
        token_mixing_(mlp(tokens, o.tokens_inner)),
        channel_mixing_(mlp(o.hidden, o.channels_inner)) {
    register_module("token_norm", token_norm_);
    register_module("channel_norm", channel_norm_);
    register_module("token_mixing", token_mixing_);
    register_module("channel_mixing", channel_mixing_);
  }

  torch::Tensor forward(torch::Tensor x) {
    auto y = token_norm_->forward(x).transpose(1, 2);
    x = x + token_mixing_->forward(y).transpose(1, 2);
    return x + channel_mixing_->forward(channel_norm_->forward(x));
  }

 private:
  torch::nn::LayerNorm token_norm_, channel_norm_;
  torch::nn::Sequential token_mixing_, channel_mixing_;
};
TORCH_MODULE(MixerBlock);

class MlpMixerImpl : public torch::nn::Module {
 public:
  explicit MlpMixerImpl(const Options& o = {})
      : stem_(torch::nn::Conv2dOptions(o.channels, o.hidden, o.patch).stride(o.patch)),
        norm_(torch::nn::LayerNormOptions({o.hidden})),
        head_(o.hidden, o.classes) {
    register_module("stem", stem_);
    const auto tokens = (o.image / o.patch) * (o.image / o.patch);
    for (int64_t i = 0; i < o.layers; ++i) blocks_->push_back(MixerBlock(o, tokens));
    register_module("blocks", blocks_);
    register_module("norm", norm_);
    register_module("head", head_);
  }

  torch::Tensor forward(torch::Tensor image) {
    auto x = stem_->forward(image);                                // b c h w
    x = x.reshape({x.size(0), x.size(1), -1}).permute({0, 2, 1});  // b (h w) c
    x = blocks_->forward(x);
    return head_->forward(norm_->forward(x).mean(1));
  }

 private:
  torch::nn::Conv2d stem_;
  torch::nn::Sequential blocks_;
  torch::nn::LayerNorm norm_;
  torch::nn::Linear head_;
};
TORCH_MODULE(MlpMixer);

}  // namespace models::mixer
