#include "parallelizers/data/exchange/reduce_scatter_gradients.h"

#include <ATen/ATen.h>

#include "parallelizers/data/zero/gradient_share.h"
#include "parallelizers/libtorch/gradient_type.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/layout/memory_order.h"

namespace oslo {
namespace {

/// A gradient that has not been exchanged, as an ordinary tensor; zeros where there is none.
at::Tensor new_gradient(const at::Tensor& parameter) {
  if (!has_new_gradient(parameter)) {
    return at::zeros(parameter.sizes(),
                     at::TensorOptions(gradient_type(parameter)).device(parameter.device()));
  }
  const at::Tensor& gradient = parameter.grad();
  if (gradient.is_sparse()) return gradient.to_dense();
  return plain_values(gradient);
}

at::Tensor flat_rows(const at::Tensor& gradient, const GradientShare& share, int64_t start,
                     int64_t rows, c10::IntArrayRef order) {
  return gradient.narrow(share.dim, start, rows).permute(order).reshape({-1});
}

/// The other way round.
at::Tensor rows_of(const at::Tensor& flat, const at::Tensor& parameter, const GradientShare& share,
                   int64_t rows) {
  const MemoryOrder order = memory_order(parameter);
  std::vector<int64_t> sizes, back(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    sizes.push_back(order[i] == share.dim ? rows : parameter.size(order[i]));
    back[order[i]] = static_cast<int64_t>(i);
  }
  return flat.view(sizes).permute(back);
}

int64_t elements_of(const at::Tensor& parameter, const GradientShare& share, int rank) {
  const int64_t rows = parameter.size(share.dim);
  return rows == 0 ? 0 : parameter.numel() / rows * share.rows[rank];
}

}  // namespace

bool ReduceScatterGradients::serves(const at::Tensor& parameter) const {
  return gradient_share(parameter) != nullptr;
}

GradientBucket ReduceScatterGradients::pack(Group& group, c10::ArrayRef<at::Tensor> parameters,
                                            bool asks) const {
  std::vector<GradientSharePtr> shares;
  std::vector<at::Tensor> gradients;
  std::vector<MemoryOrder> orders;  // what travels lies as the parameter does
  std::vector<double> have;
  for (const at::Tensor& parameter : parameters) {
    shares.push_back(gradient_share(parameter));
    gradients.push_back(new_gradient(parameter));
    orders.push_back(memory_order(parameter));
    have.push_back(has_new_gradient(parameter) ? 1 : 0);
  }
  const at::TensorOptions options = gradients.front().options();
  const at::Tensor flags = at::tensor(have).to(options);
  std::vector<at::Tensor> flat;
  std::vector<int64_t> of_rank(group.size(), 0), starts(parameters.size(), 0);
  for (int rank = 0; rank < group.size(); ++rank) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const int64_t rows = shares[i]->rows[rank];
      of_rank[rank] += elements_of(parameters[i], *shares[i], rank);
      flat.push_back(flat_rows(gradients[i], *shares[i], starts[i], rows, orders[i]));
      starts[i] += rows;
    }
    if (!asks) continue;
    of_rank[rank] += flags.numel();
    flat.push_back(flags);
  }
  GradientBucket bucket{at::cat(flat), parameters, std::move(of_rank)};
  for (const at::Tensor& parameter : parameters) {
    if (has_new_gradient(parameter)) parameter.mutable_grad().reset();
  }
  return bucket;
}

Pending ReduceScatterGradients::start(Group& group, const GradientBucket& bucket,
                                      bool awaited) const {
  return awaited ? Pending(group.reduce_scatter(bucket.flat, 0, bucket.of_rank))
                 : group.start_reduce_scatter(bucket.flat, 0, bucket.of_rank);
}

void ReduceScatterGradients::unpack(Group& group, const at::Tensor& result,
                                    c10::ArrayRef<at::Tensor> parameters, std::vector<bool> had,
                                    bool asked) const {
  if (asked) had = had_by_any(result, static_cast<int64_t>(parameters.size()));
  int64_t start = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i];
    const GradientSharePtr share = gradient_share(parameter);
    const int64_t elements = elements_of(parameter, *share, group.rank());
    const at::Tensor flat = result.narrow(0, start, elements);
    start += elements;
    if (!had[i]) continue;
    const at::Tensor sums = rows_of(flat, parameter, *share, share->rows[group.rank()]);
    if (const at::Tensor before = take_part(parameter); before.defined()) {
      plain_values(before).add_(sums);
      give_part(parameter, before);
      continue;
    }
    give_part(parameter, sums.clone());
  }
}

}  // namespace oslo
