#pragma once

#include <torch/torch.h>

#include <tuple>
#include <vector>

// DETR as its authors' demonstration: a convolutional backbone with frozen statistics, learned row
// and column embeddings and object queries as bare parameters, torch::nn::Transformer, and a set
// loss (cost matrix, nearest assignment, L1 and generalized IoU).
namespace models::detr {

struct FrozenBatchNorm2dImpl : torch::nn::Module {
  explicit FrozenBatchNorm2dImpl(int64_t n) {
    weight = register_buffer("weight", torch::rand(n) + 0.5);
    bias = register_buffer("bias", torch::randn(n) * 0.1);
    running_mean = register_buffer("running_mean", torch::randn(n) * 0.1);
    running_var = register_buffer("running_var", torch::rand(n) + 0.5);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto w = weight.reshape({1, -1, 1, 1});
    auto b = bias.reshape({1, -1, 1, 1});
    auto rv = running_var.reshape({1, -1, 1, 1});
    auto rm = running_mean.reshape({1, -1, 1, 1});
    auto scale = w * (rv + 1e-5).rsqrt();
    return x * scale + (b - rm * scale);
  }
  torch::Tensor weight, bias, running_mean, running_var;
};
TORCH_MODULE(FrozenBatchNorm2d);

struct BottleneckImpl : torch::nn::Module {
  BottleneckImpl(int64_t in, int64_t mid, int64_t out, int64_t stride) {
    using C = torch::nn::Conv2dOptions;
    body = register_module(
        "body", torch::nn::Sequential(
                    torch::nn::Conv2d(C(in, mid, 1).bias(false)), FrozenBatchNorm2d(mid),
                    torch::nn::ReLU(torch::nn::ReLUOptions(true)),
                    torch::nn::Conv2d(C(mid, mid, 3).stride(stride).padding(1).bias(false)),
                    FrozenBatchNorm2d(mid), torch::nn::ReLU(torch::nn::ReLUOptions(true)),
                    torch::nn::Conv2d(C(mid, out, 1).bias(false)), FrozenBatchNorm2d(out)));
    downsample = register_module(
        "downsample",
        torch::nn::Sequential(torch::nn::Conv2d(C(in, out, 1).stride(stride).bias(false)),
                              FrozenBatchNorm2d(out)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto out = body->forward(x);
    out += downsample->forward(x);
    return out.relu_();
  }
  torch::nn::Sequential body{nullptr}, downsample{nullptr};
};
TORCH_MODULE(Bottleneck);

struct DetrImpl : torch::nn::Module {
  explicit DetrImpl(int64_t num_classes = 5, int64_t hidden_dim = 30, int64_t nheads = 3,
                    int64_t queries = 7) {
    stem = register_module(
        "stem", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 10, 5).stride(2).padding(2)));
    layer1 = register_module("layer1", Bottleneck(10, 9, 17, 1));
    layer2 = register_module("layer2", Bottleneck(17, 11, 26, 2));
    conv = register_module("conv", torch::nn::Conv2d(26, hidden_dim, 1));
    transformer = register_module(
        "transformer", torch::nn::Transformer(torch::nn::TransformerOptions(hidden_dim, nheads)
                                                  .num_encoder_layers(1)
                                                  .num_decoder_layers(2)
                                                  .dim_feedforward(38)
                                                  .dropout(0.0)));
    linear_class = register_module("linear_class", torch::nn::Linear(hidden_dim, num_classes + 1));
    linear_bbox = register_module(
        "linear_bbox", torch::nn::Sequential(torch::nn::Linear(hidden_dim, hidden_dim),
                                             torch::nn::ReLU(), torch::nn::Linear(hidden_dim, 4)));
    query_pos = register_parameter("query_pos", torch::rand({queries, hidden_dim}));
    row_embed = register_parameter("row_embed", torch::rand({20, hidden_dim / 2}));
    col_embed = register_parameter("col_embed", torch::rand({20, hidden_dim / 2}));
  }

  /// Class logits and boxes (center and size, 0 to 1) of every query.
  std::tuple<torch::Tensor, torch::Tensor> forward(const torch::Tensor& inputs) {
    auto x = torch::relu(stem(inputs));
    x = torch::max_pool2d(x, 3, 2, 1);
    x = layer2(layer1(x));
    auto h = conv(x);
    const auto H = h.size(-2), W = h.size(-1);
    auto pos = torch::cat({col_embed.slice(0, 0, W).unsqueeze(0).repeat({H, 1, 1}),
                           row_embed.slice(0, 0, H).unsqueeze(1).repeat({1, W, 1})},
                          -1)
                   .flatten(0, 1)
                   .unsqueeze(1);
    h = transformer->forward(pos + 0.1 * h.flatten(2).permute({2, 0, 1}),
                             query_pos.unsqueeze(1).repeat({1, h.size(0), 1}));
    h = h.transpose(0, 1);
    return {linear_class(h), linear_bbox->forward(h).sigmoid()};
  }

  torch::nn::Conv2d stem{nullptr}, conv{nullptr};
  Bottleneck layer1{nullptr}, layer2{nullptr};
  torch::nn::Transformer transformer{nullptr};
  torch::nn::Linear linear_class{nullptr};
  torch::nn::Sequential linear_bbox{nullptr};
  torch::Tensor query_pos, row_embed, col_embed;
};
TORCH_MODULE(Detr);

inline torch::Tensor box_cxcywh_to_xyxy(const torch::Tensor& x) {
  const auto c = x.unbind(-1);
  return torch::stack({c[0] - 0.5 * c[2], c[1] - 0.5 * c[3], c[0] + 0.5 * c[2], c[1] + 0.5 * c[3]},
                      -1);
}

/// Of boxes in pairs, [..., 4] each.
inline torch::Tensor generalized_iou(const torch::Tensor& a, const torch::Tensor& b) {
  using torch::indexing::Ellipsis;
  using torch::indexing::None;
  using torch::indexing::Slice;
  const auto area = [](const torch::Tensor& x) {
    return (x.index({Ellipsis, 2}) - x.index({Ellipsis, 0})) *
           (x.index({Ellipsis, 3}) - x.index({Ellipsis, 1}));
  };
  const auto lt =
      torch::max(a.index({Ellipsis, Slice(None, 2)}), b.index({Ellipsis, Slice(None, 2)}));
  const auto rb =
      torch::min(a.index({Ellipsis, Slice(2, None)}), b.index({Ellipsis, Slice(2, None)}));
  const auto inter = (rb - lt).clamp(0).prod(-1);
  const auto joint = area(a) + area(b) - inter;
  const auto outer =
      (torch::max(a.index({Ellipsis, Slice(2, None)}), b.index({Ellipsis, Slice(2, None)})) -
       torch::min(a.index({Ellipsis, Slice(None, 2)}), b.index({Ellipsis, Slice(None, 2)})))
          .clamp(0)
          .prod(-1);
  return inter / joint - (outer - joint) / outer;
}

/// `target` is [image, object, 5]: a class and a box.
inline torch::Tensor set_loss(const torch::Tensor& logits, const torch::Tensor& boxes,
                              const torch::Tensor& target) {
  const auto classes = target.select(-1, 0).to(torch::kLong);
  const auto wanted = target.slice(-1, 1).to(boxes.dtype());
  torch::Tensor chosen;
  {
    torch::NoGradGuard no_grad;
    const auto probabilities = logits.softmax(-1);  // [image, query, class]
    const auto cost_class =
        -probabilities.gather(2, classes.unsqueeze(1).expand({-1, logits.size(1), -1}));
    const auto cost = 5 * torch::cdist(boxes, wanted, 1) + cost_class;
    chosen = cost.argmin(1);  // the query of each object
  }
  const auto found = boxes.gather(1, chosen.unsqueeze(-1).expand({-1, -1, 4}));
  const auto labels =
      torch::full({logits.size(0), logits.size(1)}, logits.size(2) - 1, classes.options())
          .scatter(1, chosen, classes);
  const auto loss_ce = torch::nn::functional::cross_entropy(logits.transpose(1, 2), labels);
  const auto loss_box = torch::l1_loss(found, wanted);
  const auto loss_giou =
      (1 - generalized_iou(box_cxcywh_to_xyxy(found), box_cxcywh_to_xyxy(wanted))).mean();
  return loss_ce + 5 * loss_box + 2 * loss_giou;
}

}  // namespace models::detr
