#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <string>
#include <vector>

// PointNet for segmentation: shared MLPs as convolutions of width one, batch norm, learned
// transforms of the input and of the features applied by bmm, the maximum over points handed back
// to every point. Layers are built in loops and found by index.
namespace models::pointnet {

struct TNetImpl : torch::nn::Module {
  TNetImpl(int64_t size, const std::vector<int64_t>& shared, const std::vector<int64_t>& dense)
      : k(size) {
    int64_t in = k;
    for (size_t i = 0; i < shared.size(); ++i) {
      convs->push_back(torch::nn::Conv1d(torch::nn::Conv1dOptions(in, shared[i], 1)));
      norms->push_back(torch::nn::BatchNorm1d(shared[i]));
      in = shared[i];
    }
    for (size_t i = 0; i < dense.size(); ++i) {
      fcs->push_back(torch::nn::Linear(in, dense[i]));
      norms->push_back(torch::nn::BatchNorm1d(dense[i]));
      in = dense[i];
    }
    fcs->push_back(torch::nn::Linear(in, k * k));
    torch::nn::init::normal_(fcs[fcs->size() - 1]->as<torch::nn::Linear>()->weight, 0, 1e-2);
    register_module("convs", convs);
    register_module("fcs", fcs);
    register_module("norms", norms);
  }

  torch::Tensor forward(torch::Tensor x) {
    const auto batch = x.size(0);
    for (size_t i = 0; i < convs->size(); ++i) {
      x = torch::relu(norms[i]->as<torch::nn::BatchNorm1d>()->forward(
          convs[i]->as<torch::nn::Conv1d>()->forward(x)));
    }
    x = std::get<0>(torch::max(x, 2, true));
    x = x.view({batch, -1});
    for (size_t i = 0; i + 1 < fcs->size(); ++i) {
      x = fcs[i]->as<torch::nn::Linear>()->forward(x);
      x = torch::relu(norms[convs->size() + i]->as<torch::nn::BatchNorm1d>()->forward(x));
    }
    x = fcs[fcs->size() - 1]->as<torch::nn::Linear>()->forward(x);
    const auto iden = torch::eye(k, x.options()).view({1, k * k}).repeat({batch, 1});
    return (x + iden).view({-1, k, k});
  }

  int64_t k;
  torch::nn::ModuleList convs, fcs, norms;
};
TORCH_MODULE(TNet);

/// |I - A A^T|, kept near 0 so that the transform of the features stays a rotation.
inline torch::Tensor feature_transform_regularizer(const torch::Tensor& trans) {
  const auto d = trans.size(1);
  const auto I = torch::eye(d, trans.options()).unsqueeze(0);
  return torch::mean(torch::norm(torch::bmm(trans, trans.transpose(2, 1)) - I, 2, {1, 2}));
}

struct PointNetSegImpl : torch::nn::Module {
  explicit PointNetSegImpl(int64_t parts = 5) {
    using torch::nn::BatchNorm1d;
    using torch::nn::Conv1d;
    stn =
        register_module("stn", TNet(3, std::vector<int64_t>{13, 22}, std::vector<int64_t>{17, 9}));
    fstn =
        register_module("fstn", TNet(11, std::vector<int64_t>{15, 26}, std::vector<int64_t>{14}));
    conv1 = register_module("conv1", Conv1d(3, 11, 1));
    conv2 = register_module("conv2", Conv1d(11, 25, 1));
    conv3 = register_module("conv3", Conv1d(25, 43, 1));
    bn1 = register_module("bn1", BatchNorm1d(11));
    bn2 = register_module("bn2", BatchNorm1d(25));
    bn3 = register_module("bn3", BatchNorm1d(43));
    head = register_module("head", torch::nn::Sequential());
    int64_t in = 43 + 11;
    for (const int64_t out : {28, 19}) {
      head->push_back(Conv1d(in, out, 1));
      head->push_back(BatchNorm1d(out));
      head->push_back(torch::nn::Functional(torch::relu));
      in = out;
    }
    head->push_back(Conv1d(in, parts, 1));
  }

  /// Log-probabilities [batch, points, parts] and the transform of the features.
  std::pair<torch::Tensor, torch::Tensor> forward(torch::Tensor x) {
    const auto n_pts = x.size(2);
    const auto trans = stn(x);
    x = x.transpose(2, 1);
    x = torch::bmm(x, trans.to(x.dtype()));
    x = x.transpose(2, 1);
    x = torch::relu(bn1(conv1(x)));
    const auto trans_feat = fstn(x);
    x = torch::bmm(x.transpose(2, 1), trans_feat.to(x.dtype())).transpose(2, 1);
    const auto pointfeat = x;
    x = torch::relu(bn2(conv2(x)));
    x = bn3(conv3(x));
    const auto global = std::get<0>(x.max(2, true)).view({-1, 43});
    x = torch::cat({global.view({-1, 43, 1}).repeat({1, 1, n_pts}), pointfeat}, 1);
    x = head->forward(x);
    x = x.transpose(2, 1).contiguous();
    return {torch::log_softmax(x, -1), trans_feat};
  }

  TNet stn{nullptr}, fstn{nullptr};
  torch::nn::Conv1d conv1{nullptr}, conv2{nullptr}, conv3{nullptr};
  torch::nn::BatchNorm1d bn1{nullptr}, bn2{nullptr}, bn3{nullptr};
  torch::nn::Sequential head{nullptr};
};
TORCH_MODULE(PointNetSeg);

}  // namespace models::pointnet
