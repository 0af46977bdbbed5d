#pragma once

#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <tuple>

// CLIP: a vision transformer and a text transformer in OpenAI's manner (sequence first,
// torch::nn::MultiheadAttention, projections as bare parameters), normalized embeddings, a learned
// temperature, and the matrix of similarities.
namespace models::clip {

struct QuickGELUImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x * torch::sigmoid(1.702 * x); }
};
TORCH_MODULE(QuickGELU);

struct ResidualAttentionBlockImpl : torch::nn::Module {
  ResidualAttentionBlockImpl(int64_t d_model, int64_t n_head, torch::Tensor mask = {})
      : attn(register_module("attn", torch::nn::MultiheadAttention(d_model, n_head))),
        ln_1(register_module("ln_1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({d_model})))),
        mlp(register_module(
            "mlp",
            torch::nn::Sequential(
                {{"c_fc", torch::nn::AnyModule(torch::nn::Linear(d_model, d_model * 3))},
                 {"gelu", torch::nn::AnyModule(QuickGELU())},
                 {"c_proj", torch::nn::AnyModule(torch::nn::Linear(d_model * 3, d_model))}}))),
        ln_2(register_module("ln_2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({d_model})))),
        attn_mask(mask) {}

  torch::Tensor attention(const torch::Tensor& x) {
    if (attn_mask.defined()) attn_mask = attn_mask.to(x.device(), x.scalar_type());
    return std::get<0>(attn->forward(x, x, x, {}, false, attn_mask));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = x + attention(ln_1(x));
    x = x + mlp->forward(ln_2(x));
    return x;
  }

  torch::nn::MultiheadAttention attn;
  torch::nn::LayerNorm ln_1;
  torch::nn::Sequential mlp;
  torch::nn::LayerNorm ln_2;
  torch::Tensor attn_mask;  // not a buffer: follows the activations
};
TORCH_MODULE(ResidualAttentionBlock);

struct VisionTransformerImpl : torch::nn::Module {
  VisionTransformerImpl(int64_t resolution, int64_t patch, int64_t width, int64_t heads,
                        int64_t output_dim) {
    conv1 = register_module(
        "conv1",
        torch::nn::Conv2d(torch::nn::Conv2dOptions(3, width, patch).stride(patch).bias(false)));
    const double scale = std::pow(double(width), -0.5);
    const int64_t grid = resolution / patch;
    class_embedding = register_parameter("class_embedding", scale * torch::randn(width));
    positional_embedding =
        register_parameter("positional_embedding", scale * torch::randn({grid * grid + 1, width}));
    ln_pre = register_module("ln_pre", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    block = register_module("block", ResidualAttentionBlock(width, heads));
    ln_post =
        register_module("ln_post", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})));
    proj = register_parameter("proj", scale * torch::randn({width, output_dim}));
  }

  torch::Tensor forward(torch::Tensor x) {
    x = conv1(x);                               // [B, width, grid, grid]
    x = x.reshape({x.size(0), x.size(1), -1});  // [B, width, grid^2]
    x = x.permute({0, 2, 1});                   // [B, grid^2, width]
    x = torch::cat(
        {class_embedding.to(x.dtype()) + torch::zeros({x.size(0), 1, x.size(-1)}, x.options()), x},
        1);
    x = x + positional_embedding.to(x.dtype());
    x = ln_pre(x);
    x = x.permute({1, 0, 2});
    x = block(x);
    x = x.permute({1, 0, 2});
    x = ln_post(x.index({torch::indexing::Slice(), 0, torch::indexing::Slice()}));
    return torch::matmul(x, proj);
  }

  torch::nn::Conv2d conv1{nullptr};
  torch::Tensor class_embedding, positional_embedding, proj;
  torch::nn::LayerNorm ln_pre{nullptr}, ln_post{nullptr};
  ResidualAttentionBlock block{nullptr};
};
TORCH_MODULE(VisionTransformer);

struct ClipOptions {
  int64_t embed_dim = 17, resolution = 9, patch = 3, vision_width = 26, vision_heads = 2;
  int64_t context = 6, vocab = 43, text_width = 25, text_heads = 5;
};

struct ClipImpl : torch::nn::Module {
  explicit ClipImpl(const ClipOptions& o = {}) {
    visual = register_module("visual", VisionTransformer(o.resolution, o.patch, o.vision_width,
                                                         o.vision_heads, o.embed_dim));
    const auto mask = torch::full({o.context, o.context}, -std::numeric_limits<float>::infinity());
    transformer = register_module(
        "transformer",
        torch::nn::Sequential(
            ResidualAttentionBlock(o.text_width, o.text_heads, torch::triu(mask, 1)),
            ResidualAttentionBlock(o.text_width, o.text_heads, torch::triu(mask, 1))));
    token_embedding =
        register_module("token_embedding", torch::nn::Embedding(o.vocab, o.text_width));
    positional_embedding = register_parameter(
        "positional_embedding", torch::empty({o.context, o.text_width}).normal_(0, 0.01));
    ln_final = register_module("ln_final",
                               torch::nn::LayerNorm(torch::nn::LayerNormOptions({o.text_width})));
    text_projection = register_parameter(
        "text_projection",
        torch::empty({o.text_width, o.embed_dim}).normal_(0, std::pow(double(o.text_width), -0.5)));
    logit_scale = register_parameter("logit_scale", torch::ones({}) * std::log(1 / 0.07));
  }

  torch::Tensor encode_text(const torch::Tensor& text) {
    auto x = token_embedding(text);
    x = x + positional_embedding;
    x = x.permute({1, 0, 2});
    x = transformer->forward(x);
    x = x.permute({1, 0, 2});
    x = ln_final(x);
    // the features of the end token, which has the highest number of each sequence
    x = x.index({torch::arange(x.size(0), text.options()), text.argmax(-1)});
    return x.matmul(text_projection);
  }

  std::tuple<torch::Tensor, torch::Tensor> forward(const torch::Tensor& image,
                                                   const torch::Tensor& text) {
    auto image_features = visual(image);
    auto text_features = encode_text(text);
    image_features = image_features / image_features.norm(2, 1, /*keepdim=*/true);
    text_features = text_features / text_features.norm(2, 1, true);
    const auto scale = logit_scale.exp();
    const auto logits_per_image = scale * torch::mm(image_features, text_features.t());
    return {logits_per_image, logits_per_image.t()};
  }

  VisionTransformer visual{nullptr};
  torch::nn::Sequential transformer{nullptr};
  torch::nn::Embedding token_embedding{nullptr};
  torch::nn::LayerNorm ln_final{nullptr};
  torch::Tensor positional_embedding, text_projection, logit_scale;
};
TORCH_MODULE(Clip);

inline torch::Tensor contrastive_loss(const torch::Tensor& per_image,
                                      const torch::Tensor& per_text) {
  namespace F = torch::nn::functional;
  const auto labels = torch::arange(per_image.size(0), torch::kLong);
  return (F::cross_entropy(per_image, labels) + F::cross_entropy(per_text, labels)) / 2;
}

}  // namespace models::clip
