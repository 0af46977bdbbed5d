#pragma once

#include <torch/torch.h>

// A vision transformer from LibTorch's parts: patches by Conv2d, a class token that is a parameter,
// torch::nn::TransformerEncoder, and a head in a Sequential.
namespace models {

class VisionTransformerImpl : public torch::nn::Module {
 public:
  VisionTransformerImpl(int64_t image = 12, int64_t patch = 4, int64_t dim = 36, int64_t heads = 4,
                        int64_t mlp_dim = 70, int64_t depth = 2, int64_t classes = 7)
      : patch_embed_(register_module(
            "patch_embed",
            torch::nn::Conv2d(torch::nn::Conv2dOptions(3, dim, patch).stride(patch)))),
        cls_token_(register_parameter("cls_token", torch::randn({1, 1, dim}) * 0.02)),
        pos_embed_(register_parameter(
            "pos_embed", torch::randn({1, 1 + (image / patch) * (image / patch), dim}) * 0.02)),
        encoder_(register_module(
            "encoder",
            torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(
                                              torch::nn::TransformerEncoderLayerOptions(dim, heads)
                                                  .dim_feedforward(mlp_dim)
                                                  .dropout(0.0)
                                                  .activation(torch::kGELU),
                                              depth)
                                              .norm(torch::nn::AnyModule(torch::nn::LayerNorm(
                                                  torch::nn::LayerNormOptions({dim}))))))),
        head_(register_module("head",
                              torch::nn::Sequential(torch::nn::Linear(dim, dim), torch::nn::Tanh(),
                                                    torch::nn::Linear(dim, classes)))) {}

  torch::Tensor forward(const torch::Tensor& images) {
    const int64_t batch = images.size(0);
    auto x = patch_embed_(images);     // [B, D, H/p, W/p]
    x = x.flatten(2).transpose(1, 2);  // [B, N, D]
    const auto cls = cls_token_.expand({batch, -1, -1});
    x = torch::cat({cls, x}, 1) + pos_embed_;
    x = encoder_(x.transpose(0, 1));  // [N + 1, B, D]
    return head_->forward(x[0]);
  }

 private:
  torch::nn::Conv2d patch_embed_;
  torch::Tensor cls_token_, pos_embed_;
  torch::nn::TransformerEncoder encoder_;
  torch::nn::Sequential head_;
};
TORCH_MODULE(VisionTransformer);

}  // namespace models
