#pragma once

#include <torch/torch.h>

// DLRM after the reference implementation: a bottom MLP for dense features, a table of embedding
// bags for each sparse one, pairwise dot products (bmm and the indices of a lower triangle), a top
// MLP to a click probability.
namespace models::dlrm {

struct Options {
  std::vector<int64_t> rows{11, 5, 17, 3};
  int64_t dense = 6, size = 8, bag = 3;
};

inline torch::nn::Sequential create_mlp(const std::vector<int64_t>& ln, int64_t sigmoid_layer) {
  torch::nn::Sequential layers;
  for (size_t i = 0; i + 1 < ln.size(); ++i) {
    layers->push_back(torch::nn::Linear(ln[i], ln[i + 1]));
    if (int64_t(i) == sigmoid_layer) {
      layers->push_back(torch::nn::Sigmoid());
    } else {
      layers->push_back(torch::nn::ReLU());
    }
  }
  return layers;
}

struct DlrmImpl : torch::nn::Module {
  explicit DlrmImpl(const Options& o = {}) : size(o.size) {
    for (const auto rows : o.rows) {
      emb_l->push_back(
          torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(rows, o.size).mode(torch::kSum)));
    }
    wide = torch::nn::EmbeddingBag(
        torch::nn::EmbeddingBagOptions(o.rows[0], o.size).mode(torch::kMean));
    const int64_t features = int64_t(o.rows.size()) + 2;
    bot_l = create_mlp({o.dense, 13, o.size}, -1);
    top_l = create_mlp({o.size + features * (features - 1) / 2, 15, 1}, 1);
    register_module("emb_l", emb_l);
    register_module("wide", wide);
    register_module("bot_l", bot_l);
    register_module("top_l", top_l);
  }

  /// One flat list of indices and the offsets of the bags, as the data loader hands them out.
  std::vector<torch::Tensor> apply_emb(const torch::Tensor& sparse) {
    std::vector<torch::Tensor> ly;
    const auto offsets = torch::arange(0, sparse.size(0) * sparse.size(2), sparse.size(2));
    for (int64_t k = 0; k < sparse.size(1); ++k) {
      const auto indices = sparse.select(1, k).reshape({-1});
      ly.push_back((*emb_l)[k]->as<torch::nn::EmbeddingBag>()->forward(indices, offsets));
    }
    return ly;
  }

  torch::Tensor interact_features(const torch::Tensor& x, const std::vector<torch::Tensor>& ly) {
    std::vector<torch::Tensor> all{x};
    all.insert(all.end(), ly.begin(), ly.end());
    const auto T = torch::cat(all, 1).view({x.size(0), -1, size});
    const auto Z = torch::bmm(T, T.transpose(1, 2));
    const auto lower = torch::tril_indices(Z.size(1), Z.size(2), -1);
    const auto flat = Z.index({torch::indexing::Slice(), lower[0], lower[1]});
    return torch::cat({x, flat}, 1);
  }

  torch::Tensor forward(const torch::Tensor& dense, const torch::Tensor& sparse) {
    const auto x = bot_l->forward(dense);
    auto ly = apply_emb(sparse);
    ly.push_back(wide(sparse.select(1, 0).contiguous()));
    const auto p = top_l->forward(interact_features(x, ly));
    return torch::clamp(p, 1e-4, 1 - 1e-4).squeeze(1);
  }

  int64_t size;
  torch::nn::ModuleList emb_l;
  torch::nn::EmbeddingBag wide{nullptr};
  torch::nn::Sequential bot_l{nullptr}, top_l{nullptr};
};
TORCH_MODULE(Dlrm);

}  // namespace models::dlrm
