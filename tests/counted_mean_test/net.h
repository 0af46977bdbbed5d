#pragma once

#include <oslo_cpp/oslo.h>

#include <vector>

#include "tests/support/parity.h"

namespace oslo::test {

inline torch::nn::Sequential counted_net() {
  return make_seeded(6, [] {
    torch::nn::Sequential net(torch::nn::Linear(3, 6), torch::nn::Tanh(), torch::nn::Linear(6, 2));
    net->to(torch::kDouble);
    return net;
  });
}

/// What one rank sees in one micro-batch: some rows, or none.
struct Rows {
  torch::Tensor x, y;
  int64_t count() const { return x.size(0); }
};

inline Rows rows_of(int64_t count, double start) {
  const auto numbers = [&](int64_t width, double step) {
    return torch::sin(torch::arange(count * width, torch::kDouble) * step + start)
        .view({count, width});
  };
  return {numbers(3, 1.3), numbers(2, 0.7)};
}

/// The sum over rows, with history also where there are none.
template <typename Model>
torch::Tensor sum_of(Model&& model, const Rows& rows) {
  return (model->forward(rows.x) - rows.y).pow(2).sum();
}

/// The mean over all rows on one device, which never saw the library: gradients of zero where there
/// are none.
inline double mean_alone(torch::nn::Sequential& plain, const std::vector<Rows>& all) {
  plain->zero_grad();
  torch::Tensor sum = torch::zeros({}, torch::kDouble);
  int64_t count = 0;
  for (const Rows& rows : all) {
    sum = sum + sum_of(plain, rows);
    count += rows.count();
  }
  (sum / std::max<int64_t>(count, 1)).backward();
  return sum.item<double>() / count;
}

}  // namespace oslo::test
