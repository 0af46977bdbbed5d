#pragma once

#include <torch/torch.h>

#include <cmath>
#include <vector>

// HiFi-GAN's generator: transposed convolutions that stretch a spectrogram to a waveform, residual
// blocks of growing dilation whose outputs are averaged, weight normalization by hand (a direction
// and a length, both parameters of a module that calls the functional convolution), a speaker's
// embedding through a gate. The loss compares spectrograms at two resolutions.
namespace models::vocoder {

constexpr double kSlope = 0.1;

/// weight = g * v / |v|, the norm over all dimensions but the first.
struct NormedConv1dImpl : torch::nn::Module {
  NormedConv1dImpl(int64_t in, int64_t out, int64_t kernel, int64_t dilation_ = 1)
      : dilation(dilation_), padding((kernel - 1) * dilation_ / 2) {
    weight_v = register_parameter("weight_v", torch::randn({out, in, kernel}) * 0.3);
    weight_g = register_parameter(
        "weight_g", weight_v.detach().flatten(1).norm(2, 1).view({out, 1, 1}).clone());
    bias = register_parameter("bias", torch::zeros({out}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto norm = weight_v.flatten(1).norm(2, 1).view({-1, 1, 1});
    return torch::conv1d(x, weight_v * (weight_g / norm), bias, 1, padding, dilation);
  }
  int64_t dilation, padding;
  torch::Tensor weight_g, weight_v, bias;
};
TORCH_MODULE(NormedConv1d);

struct NormedConvTranspose1dImpl : torch::nn::Module {
  NormedConvTranspose1dImpl(int64_t in, int64_t out, int64_t kernel, int64_t stride_)
      : stride(stride_), padding((kernel - stride_) / 2) {
    weight_v = register_parameter("weight_v", torch::randn({in, out, kernel}) * 0.3);
    weight_g = register_parameter("weight_g", torch::ones({in, 1, 1}));
    bias = register_parameter("bias", torch::zeros({out}));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto weight = torch::_weight_norm(weight_v, weight_g, 0);
    return torch::conv_transpose1d(x, weight, bias, stride, padding);
  }
  int64_t stride, padding;
  torch::Tensor weight_g, weight_v, bias;
};
TORCH_MODULE(NormedConvTranspose1d);

struct ResBlockImpl : torch::nn::Module {
  ResBlockImpl(int64_t channels, int64_t kernel, std::vector<int64_t> dilations) {
    for (const auto d : dilations) {
      convs1->push_back(NormedConv1d(channels, channels, kernel, d));
      convs2->push_back(NormedConv1d(channels, channels, kernel));
    }
    register_module("convs1", convs1);
    register_module("convs2", convs2);
  }
  torch::Tensor forward(torch::Tensor x) {
    auto second = convs2->begin();
    for (const auto& first : *convs1) {
      auto xt = torch::leaky_relu(x, kSlope);
      xt = first->as<NormedConv1d>()->forward(xt);
      xt = torch::leaky_relu_(xt, kSlope);
      xt = (*second++)->as<NormedConv1d>()->forward(xt);
      x = xt + x;
    }
    return x;
  }
  torch::nn::ModuleList convs1, convs2;
};
TORCH_MODULE(ResBlock);

struct GeneratorImpl : torch::nn::Module {
  GeneratorImpl(int64_t mels = 11, int64_t speakers = 4, int64_t channels = 26) {
    conv_pre = register_module("conv_pre", NormedConv1d(mels, channels, 5));
    cond = register_module("cond", torch::nn::Embedding(speakers, 2 * channels));
    int64_t ch = channels;
    for (const auto& [rate, kernel] : {std::pair<int64_t, int64_t>{3, 5}, {2, 4}}) {
      ups->push_back(NormedConvTranspose1d(ch, ch / 2, kernel, rate));
      ch /= 2;
      resblocks->push_back(ResBlock(ch, 3, std::vector<int64_t>{1, 3}));
      resblocks->push_back(ResBlock(ch, 5, std::vector<int64_t>{1}));
    }
    register_module("ups", ups);
    register_module("resblocks", resblocks);
    conv_post = register_module("conv_post", NormedConv1d(ch, 1, 7));
  }

  torch::Tensor forward(const torch::Tensor& mel, const torch::Tensor& speaker) {
    auto x = conv_pre(mel);
    x = torch::glu(torch::cat({x, x.flip(1)}, 1) + cond(speaker).unsqueeze(-1), 1);
    for (size_t i = 0; i < ups->size(); ++i) {
      x = torch::leaky_relu(x, kSlope);
      x = ups[i]->as<NormedConvTranspose1d>()->forward(x);
      torch::Tensor xs;
      for (size_t j = 2 * i; j < 2 * i + 2; ++j) {
        const auto y = resblocks[j]->as<ResBlock>()->forward(x);
        if (xs.defined()) {
          xs += y;
        } else {
          xs = y;
        }
      }
      x = xs / 2;
    }
    x = torch::leaky_relu(x);
    return torch::tanh(conv_post(x)).squeeze(1);
  }

  NormedConv1d conv_pre{nullptr}, conv_post{nullptr};
  torch::nn::Embedding cond{nullptr};
  torch::nn::ModuleList ups, resblocks;
};
TORCH_MODULE(Generator);

inline torch::Tensor spectrogram(const torch::Tensor& wave, int64_t n_fft, int64_t hop) {
  const auto window = torch::hann_window(n_fft, wave.options());
  const auto spectrum = torch::stft(wave, n_fft, hop, n_fft, window, /*center=*/true, "reflect",
                                    /*normalized=*/false, /*onesided=*/true,
                                    /*return_complex=*/true);
  return torch::sqrt(torch::view_as_real(spectrum).pow(2).sum(-1) + 1e-5);
}

inline torch::Tensor spectral_loss(const torch::Tensor& wave, const torch::Tensor& wanted) {
  auto loss = torch::zeros({}, wave.options());
  for (const auto& [n_fft, hop] : {std::pair<int64_t, int64_t>{16, 4}, {10, 3}}) {
    const auto a = spectrogram(wave, n_fft, hop), b = spectrogram(wanted, n_fft, hop);
    loss = loss + (a - b).abs().mean() + torch::l1_loss(a.log(), b.log());
  }
  return loss;
}

}  // namespace models::vocoder
