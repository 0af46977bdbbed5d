#pragma once

#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

// Kernels as C++ sources of detectors have them: loops over `data_ptr`. They know plain tensors.
namespace programs::detection {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::tensor_list;

/// The rows of `boxes` [n, 4] (x1, y1, x2, y2) that stay: the best first, and none that overlaps a
/// better one by more than `threshold`.
inline Tensor nms(const Tensor& boxes, const Tensor& scores, double threshold) {
  const Tensor corners = boxes.detach().contiguous(), worth = scores.detach().contiguous();
  const double* box = corners.data_ptr<double>();
  const double* score = worth.data_ptr<double>();
  std::vector<int64_t> order(static_cast<size_t>(boxes.size(0)));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return score[a] > score[b]; });
  const auto area = [&](int64_t i) {
    return (box[4 * i + 2] - box[4 * i]) * (box[4 * i + 3] - box[4 * i + 1]);
  };
  const auto overlap = [&](int64_t i, int64_t j) {
    const double w = std::min(box[4 * i + 2], box[4 * j + 2]) - std::max(box[4 * i], box[4 * j]);
    const double h =
        std::min(box[4 * i + 3], box[4 * j + 3]) - std::max(box[4 * i + 1], box[4 * j + 1]);
    const double both = std::max(w, 0.0) * std::max(h, 0.0);
    return both / (area(i) + area(j) - both);
  };
  std::vector<int64_t> kept;
  for (const int64_t i : order) {
    if (std::none_of(kept.begin(), kept.end(),
                     [&](int64_t better) { return overlap(i, better) > threshold; })) {
      kept.push_back(i);
    }
  }
  return torch::tensor(kept, torch::kLong);
}

/// What a point between four pixels is made of, and how much of each.
struct Bilinear {
  Bilinear(double y, double x, int64_t height, int64_t width) {
    y = std::clamp(y, 0.0, double(height - 1));
    x = std::clamp(x, 0.0, double(width - 1));
    const auto y0 = int64_t(y), x0 = int64_t(x);
    const int64_t y1 = std::min(y0 + 1, height - 1), x1 = std::min(x0 + 1, width - 1);
    const double dy = y - double(y0), dx = x - double(x0);
    const double weights[4] = {(1 - dy) * (1 - dx), (1 - dy) * dx, dy * (1 - dx), dy * dx};
    const int64_t places[4] = {y0 * width + x0, y0 * width + x1, y1 * width + x0, y1 * width + x1};
    for (int i = 0; i < 4; ++i) at[i] = {places[i], weights[i]};
  }
  std::pair<int64_t, double> at[4];
};

/// `visit(roi, channel, bin, pixel, weight)` of all that RoIAlign with one sample a bin reads.
template <typename Visit>
void each_sample(const Tensor& rois, at::IntArrayRef features, int64_t bins, const Visit& visit) {
  const double* roi = rois.data_ptr<double>();
  const int64_t channels = features[1], height = features[2], width = features[3];
  for (int64_t r = 0; r < rois.size(0); ++r) {
    const double* box = roi + 5 * r;  // image, x1, y1, x2, y2
    for (int64_t bin = 0; bin < bins * bins; ++bin) {
      const double y = box[2] + (box[4] - box[2]) * (double(bin / bins) + 0.5) / double(bins);
      const double x = box[1] + (box[3] - box[1]) * (double(bin % bins) + 0.5) / double(bins);
      const Bilinear point(y, x, height, width);
      for (int64_t c = 0; c < channels; ++c) {
        const int64_t plane = (int64_t(box[0]) * channels + c) * height * width;
        for (const auto& [pixel, weight] : point.at) visit(r, c, bin, plane + pixel, weight);
      }
    }
  }
}

/// Features [images, channels, height, width] in boxes [n, 5], as [n, channels, bins, bins].
struct RoIAlign : Function<RoIAlign> {
  static Tensor forward(AutogradContext* ctx, const Tensor& features, const Tensor& rois,
                        int64_t bins) {
    const Tensor from = features.contiguous(), boxes = rois.detach().contiguous();
    ctx->save_for_backward({boxes});
    ctx->saved_data["sizes"] = from.sizes().vec();
    ctx->saved_data["bins"] = bins;
    const int64_t channels = from.size(1);
    Tensor result = torch::zeros({boxes.size(0), channels, bins, bins}, from.options());
    const double* in = from.data_ptr<double>();
    double* out = result.data_ptr<double>();
    each_sample(boxes, from.sizes(), bins,
                [&](int64_t r, int64_t c, int64_t bin, int64_t pixel, double weight) {
                  out[(r * channels + c) * bins * bins + bin] += weight * in[pixel];
                });
    return result;
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const Tensor boxes = ctx->get_saved_variables()[0], gradient = grads[0].contiguous();
    const auto sizes = ctx->saved_data["sizes"].toIntVector();
    const int64_t bins = ctx->saved_data["bins"].toInt(), channels = sizes[1];
    Tensor result = torch::zeros(sizes, gradient.options());
    const double* in = gradient.data_ptr<double>();
    double* out = result.data_ptr<double>();
    each_sample(boxes, sizes, bins,
                [&](int64_t r, int64_t c, int64_t bin, int64_t pixel, double weight) {
                  out[pixel] += weight * in[(r * channels + c) * bins * bins + bin];
                });
    return {result, Tensor(), Tensor()};
  }
};

}  // namespace programs::detection
