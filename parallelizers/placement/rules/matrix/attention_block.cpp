#include "parallelizers/placement/rules/matrix/attention_block.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <limits>
#include <optional>
#include <tuple>

namespace oslo {
namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

at::ScalarType sum_type(const at::Tensor& tensor) {
  return at::toOpMathType(tensor.scalar_type());
}

/// Whether LibTorch's fused kernels of CPUs take it. With a mask they have no number for a query
/// that sees nothing of a block.
bool fused(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
           const BlockView& view) {
  return query.is_cpu() && query.dim() == 4 && !view.mask.defined() &&
         query.size(-1) == value.size(-1) && query.numel() > 0 && key.numel() > 0;
}

/// Heads of keys for each of the queries' heads.
at::Tensor spread(const at::Tensor& key, const at::Tensor& query) {
  if (key.dim() < 3 || key.size(-3) == query.size(-3)) return key;
  return key.repeat_interleave(query.size(-3) / key.size(-3), -3);
}

/// The sum over the heads of queries that share one of the keys'.
at::Tensor collected(const at::Tensor& gradient, const at::Tensor& key) {
  if (gradient.sizes() == key.sizes()) return gradient;
  return gradient.unflatten(-3, {key.size(-3), gradient.size(-3) / key.size(-3)}).sum(-3);
}

at::Tensor scores_of(const at::Tensor& query, const at::Tensor& key, const BlockView& view,
                     double scale) {
  const at::ScalarType type = sum_type(query);
  at::Tensor scores = at::matmul(query.to(type), key.to(type).transpose(-2, -1)) * scale;
  if (view.causal) {
    const auto seen = at::ones({query.size(-2), key.size(-2)}, query.options().dtype(at::kBool));
    scores = scores.masked_fill(seen.tril().logical_not(), kNever);
  }
  if (!view.mask.defined()) return scores;
  const at::Tensor mask = view.mask.to(scores.device());
  if (mask.scalar_type() == at::kBool) {
    return scores.masked_fill(mask.logical_not(), kNever);
  }
  return scores + mask.to(type);
}

/// exp(scores - log_sum), zero for queries that see nothing.
at::Tensor shares(const at::Tensor& scores, const at::Tensor& log_sum) {
  const at::Tensor sees = log_sum.isneginf().unsqueeze(-1);
  return (scores - log_sum.unsqueeze(-1)).exp().masked_fill(sees, 0);
}

}  // namespace

BlockAttention attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                      const BlockView& view, double scale) {
  const at::Tensor keys = spread(key, query), values = spread(value, query);
  if (fused(query, key, value, view)) {
    auto [output, log_sum] = at::_scaled_dot_product_flash_attention_for_cpu(
        query, keys, values, 0.0, view.causal, std::nullopt, scale);
    return {std::move(output), std::move(log_sum)};
  }
  const at::Tensor scores = scores_of(query, keys, view, scale);
  const at::Tensor log_sum = scores.logsumexp(-1);
  const at::Tensor output = at::matmul(shares(scores, log_sum), values.to(scores.scalar_type()));
  return {output.to(query.scalar_type()), log_sum};
}

void add_block(BlockAttention& sum, const BlockAttention& block) {
  const at::ScalarType type = block.log_sum.scalar_type();
  if (!sum.output.defined()) {
    sum = {block.output.to(type), block.log_sum};
    return;
  }
  const at::Tensor log_sum = at::logaddexp(sum.log_sum, block.log_sum);
  const auto share = [&](const at::Tensor& of) {
    return (of - log_sum).exp().masked_fill(log_sum.isneginf(), 0).unsqueeze(-1);
  };
  sum.output = sum.output * share(sum.log_sum) + block.output.to(type) * share(block.log_sum);
  sum.log_sum = log_sum;
}

BlockGradients attend_backward(const at::Tensor& gradient, const at::Tensor& query,
                               const at::Tensor& key, const at::Tensor& value,
                               const BlockAttention& all, const BlockView& view, double scale) {
  const at::Tensor keys = spread(key, query), values = spread(value, query);
  if (fused(query, key, value, view)) {
    auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, query, keys, values, all.output, all.log_sum, 0.0, view.causal, std::nullopt,
        scale);
    return {of_query, collected(of_key, key), collected(of_value, value)};
  }
  const at::ScalarType type = sum_type(query);
  const at::Tensor above = gradient.to(type);
  const at::Tensor share = shares(scores_of(query, keys, view, scale), all.log_sum);
  const at::Tensor mean = (above * all.output.to(type)).sum(-1, /*keepdim=*/true);
  const at::Tensor of_scores =
      share * (at::matmul(above, values.to(type).transpose(-2, -1)) - mean) * scale;
  return {at::matmul(of_scores, keys.to(type)),
          collected(at::matmul(of_scores.transpose(-2, -1), query.to(type)), key),
          collected(at::matmul(share.transpose(-2, -1), above), value)};
}

}  // namespace oslo
