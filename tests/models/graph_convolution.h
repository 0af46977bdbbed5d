#pragma once

#include <torch/torch.h>

// Graph convolutions over an edge list that all samples share (a molecule's bonds, a sensor net): a
// degree-normalized convolution by index_add, an attention layer whose softmax runs over the edges
// that end in a node (scatter_reduce and scatter_add), a readout by segments.
namespace models::graph {

struct Options {
  int64_t nodes = 9, edges = 20, features = 5, hidden = 14, heads = 2, groups = 3, classes = 4;
};

struct GraphConvImpl : torch::nn::Module {
  GraphConvImpl(int64_t in, int64_t out)
      : lin(register_module("lin",
                            torch::nn::Linear(torch::nn::LinearOptions(in, out).bias(false)))),
        bias(register_parameter("bias", torch::zeros({out}))) {}

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& src,
                        const torch::Tensor& dst) {
    const auto N = x.size(1);
    const auto degree = torch::zeros({N}, x.options())
                            .scatter_add_(0, dst, torch::ones({dst.size(0)}, x.options()));
    const auto inverse = degree.clamp_min(1).pow(-0.5);
    const auto norm = inverse.index_select(0, src) * inverse.index_select(0, dst);
    const auto h = lin(x);
    const auto message = h.index_select(1, src) * norm.view({1, -1, 1});
    return torch::zeros(h.sizes(), message.options()).index_add_(1, dst, message) + bias;
  }

  torch::nn::Linear lin;
  torch::Tensor bias;
};
TORCH_MODULE(GraphConv);

struct GraphAttentionImpl : torch::nn::Module {
  GraphAttentionImpl(int64_t in, int64_t out, int64_t num_heads) : heads(num_heads) {
    lin = register_module("lin", torch::nn::Linear(in, out * heads));
    att_src = register_parameter("att_src", torch::randn({1, 1, heads, out}));
    att_dst = register_parameter("att_dst", torch::randn({1, 1, heads, out}));
  }

  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& src,
                        const torch::Tensor& dst) {
    const auto B = x.size(0), N = x.size(1), E = src.size(0);
    const auto h = lin(x).view({B, N, heads, -1});
    const auto left = (h * att_src).sum(-1), right = (h * att_dst).sum(-1);
    const auto score =
        torch::leaky_relu(left.index_select(1, src) + right.index_select(1, dst), 0.2);
    const auto index = dst.view({1, E, 1}).expand({B, E, heads});
    const auto top = torch::full({B, N, heads}, -1e4, x.options())
                         .scatter_reduce(1, index, score.detach().to(x.dtype()), "amax");
    const auto weight = (score - top.gather(1, index)).exp();
    const auto total = torch::zeros({B, N, heads}, weight.options()).scatter_add(1, index, weight);
    const auto alpha = weight / (total.gather(1, index) + 1e-9);
    const auto message = alpha.unsqueeze(-1) * h.index({torch::indexing::Slice(), src});
    auto out = torch::zeros({B, N, heads, h.size(3)}, message.options());
    out = out.index_add(1, dst, message);
    return out.flatten(2);
  }

  int64_t heads;
  torch::nn::Linear lin{nullptr};
  torch::Tensor att_src, att_dst;
};
TORCH_MODULE(GraphAttention);

struct GraphNetImpl : torch::nn::Module {
  explicit GraphNetImpl(const Options& o = {}) : groups(o.groups) {
    conv = register_module("conv", GraphConv(o.features, o.hidden));
    attention = register_module("attention", GraphAttention(o.hidden, o.hidden / 2, o.heads));
    out = register_module("out", GraphConv(o.hidden, o.hidden));
    classifier = register_module("classifier", torch::nn::Linear(o.groups * o.hidden, o.classes));
    edge_index =
        register_buffer("edge_index", torch::stack({torch::arange(o.edges) % o.nodes,
                                                    (torch::arange(o.edges) * 7 + 3) % o.nodes}));
    segment = register_buffer("segment", torch::arange(o.nodes) % o.groups);
  }

  torch::Tensor forward(const torch::Tensor& x) {
    const auto edges = edge_index.to(torch::kLong);  // Module::to(dtype) casts it with the rest
    const auto src = edges[0], dst = edges[1];
    auto h = torch::elu(conv(x, src, dst));
    h = torch::elu(attention(h, src, dst)) + h;
    h = out(h, src, dst);
    const auto index = segment.to(torch::kLong).view({1, -1, 1}).expand_as(h);
    const auto pooled =
        torch::zeros({h.size(0), groups, h.size(2)}, h.options()).scatter_add(1, index, h);
    return classifier(pooled.reshape({h.size(0), -1}));
  }

  int64_t groups;
  GraphConv conv{nullptr}, out{nullptr};
  GraphAttention attention{nullptr};
  torch::nn::Linear classifier{nullptr};
  torch::Tensor edge_index, segment;
};
TORCH_MODULE(GraphNet);

}  // namespace models::graph
