#include <ATen/ATen.h>
#include <c10/util/FunctionRef.h>

#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/engine/in_place.h"
#include "parallelizers/placement/engine/joined_sum.h"
#include "parallelizers/placement/engine/pointwise.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/arithmetic.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/matrix/linear/linear_node.h"
#include "parallelizers/placement/rules/matrix/product_by_heads.h"

namespace oslo {
namespace {

/// Batch dimensions of two operands, aligned from the right; a size-1 dimension stretches.
struct Batch {
  std::string left, right, result;
};

Batch batch_of(const Value& x, const Value& y) {
  const int64_t left = std::max<int64_t>(0, x.dim() - 2), right = std::max<int64_t>(0, y.dim() - 2);
  const std::string all = letters(std::max(left, right));
  Batch batch{all.substr(all.size() - left), all.substr(all.size() - right), all};
  for (int64_t d = 1; d <= std::min(left, right); ++d) {
    const int64_t mine = x.size(left - d), others = y.size(right - d);
    if (mine == 1 && others != 1) batch.left[left - d] = '-';
    if (others == 1 && mine != 1) batch.right[right - d] = '-';
  }
  return batch;
}

DimensionMap matmul_map(const Value& x, const Value& y) {
  if (y.dim() == 2 && x.dim() >= 2) {
    const std::string rows = letters(x.dim() - 1);
    return {{rows + "K", "KN"}, {rows + "N"}};
  }
  if (y.dim() == 1) {
    const std::string rows = letters(x.dim() - 1);
    return {{rows + "K", "K"}, {rows}};
  }
  const Batch batch = batch_of(x, y);
  if (x.dim() == 1) return {{"K", batch.right + "KN"}, {batch.right + "N"}};
  return {{batch.left + "MK", batch.right + "KN"}, {batch.result + "MN"}};
}

ProductAgain again_of(const PartsOfProduct& parts, c10::ArrayRef<Value> operands) {
  parts.foresee(operands);
  return {parts.again(0, operands[0]), parts.again(1, operands[1])};
}

/// matmul, mm, bmm, mv, dot. C++'s torch::nn::Linear multiplies by `weight.t()`.
void matmul(Call& call) {
  c10::SmallVector<Value, 2> operands{call.value(0), call.value(1)};
  const DimensionMap map = matmul_map(operands[0], operands[1]);
  const PartsOfProduct parts(operands);
  const std::optional<BackToPositions> back = cut_by_heads(map, operands);
  const Resolution resolution = resolve(map, operands);
  const at::Tensor &x = operands[0].local, &y = operands[1].local;
  ProductAgain again = again_of(parts, operands);
  at::Tensor product =
      y.dim() != 2 || y.is_meta()
          ? call.call_below({x, y})[0].toTensor()
          : linear_product(x, y, {}, WeightForm::input_first, call.fusion(), std::move(again));
  call.result(brought_back(
      resolution.finish(std::move(product), map.results[0], /*may_wait=*/!back), back));
}

/// Whether each rank may add its part of `bias` (N) inside the product (.., N): both are cut alike
/// or not at all, and on no axis is the product cut otherwise or a partial sum.
bool adds_inside(const Resolution& resolution, const Value& bias, int64_t columns) {
  if (!bias.defined() || bias.dim() != 1 || bias.size(0) != columns) return false;
  if (!resolution.axes_beside("N").empty()) return false;
  const LayoutPtr layout = resolution.layout_of("N");
  return layout ? bias.cut() && *bias.layout == *layout : !bias.cut();
}

/// left + right, where `left` may be a partial sum; the result lies like it.
Value add_once(Value left, const Value& right) {
  if (left.partial && joins_whole(left, right)) return add_to_sum(left, right);
  return add_values(end_sum(std::move(left)), right);
}

/// x (.., K), weight (N, K), bias (N): where the product is a partial sum the bias is added once,
/// after the reduction.
void linear(Call& call) {
  c10::SmallVector<Value, 2> operands{call.value(0), call.value(1)};
  const std::string rows = letters(operands[0].dim() - 1);
  const PartsOfProduct parts(operands);
  const Resolution resolution = resolve({{rows + "K", "NK"}, {rows + "N"}}, operands);
  const Value bias = call.value(2);
  const bool inside = adds_inside(resolution, bias, operands[1].size(0));
  const at::Tensor &x = operands[0].local, &weight = operands[1].local;
  const at::Tensor added = inside ? bias.local : at::Tensor();
  Value y = resolution.finish(linear_product(x, weight, added, WeightForm::output_first,
                                             call.fusion(), again_of(parts, operands)),
                              rows + "N", /*may_wait=*/true);
  if (bias.defined() && !inside) y = add_once(std::move(y), bias);
  call.result(std::move(y));
}

using Multiply = c10::function_ref<at::Tensor(const at::Tensor&, const at::Tensor&)>;
using SumOfProduct = c10::function_ref<at::Tensor(
    const at::Tensor&, const at::Tensor&, const at::Tensor&, const at::Scalar&, const at::Scalar&)>;

/// product + beta * self, laid out as the product, or as self.
Value add_self(const Value& product, const Value& self, const at::Scalar& beta, bool like_self) {
  if (product.partial && joins_whole(product, self)) return add_to_sum(product, self, beta);
  c10::SmallVector<Value, 2> both{end_sum(product), self};
  if (like_self) std::swap(both[0], both[1]);
  resolve(pointwise_map(both), both, Keep::first_operand);
  return {at::add(both[like_self ? 1 : 0].local, both[like_self ? 0 : 1].local, beta),
          both[0].layout};
}

/// This rank's part of the map's result, without content.
Value shape_of_result(const DimensionMap& map, const Resolution& resolution,
                      c10::ArrayRef<Value> operands) {
  std::vector<int64_t> sizes;
  for (const char letter : map.results[0]) {
    const size_t of = contains(map.operands[0], letter) ? 0 : 1;
    sizes.push_back(operands[of].local.size(static_cast<int64_t>(map.operands[of].find(letter))));
  }
  return {at::empty(sizes, operands[0].local.options().device(at::kMeta)),
          resolution.layout_of(map.results[0])};
}

/// Of half precision, where no axis holds a partial sum: one device scales, adds and rounds once.
Value add_product_rounding_once(const Call& call, const Value& self, const DimensionMap& map,
                                const Resolution& resolution, c10::ArrayRef<Value> operands,
                                Multiply product, SumOfProduct in_one) {
  const at::Scalar beta = call.argument(3).toScalar(), alpha = call.argument(4).toScalar();
  const at::Tensor &left = operands[0].local, &right = operands[1].local;
  const Value shape = shape_of_result(map, resolution, operands);
  const bool lies_alike = shape.layout ? self.cut() && *self.layout == *shape.layout : !self.cut();
  if (call.op().in_place && !lies_alike && self.sizes() == shape.sizes()) {
    // The product goes where self is, and must not be rounded before.
    const at::Tensor wide = product(left.to(at::kFloat), right.to(at::kFloat)) * alpha;
    Value y = add_self({wide, shape.layout}, self, beta, /*like_self=*/true);
    y.local = y.local.to(left.scalar_type());
    return y;
  }
  c10::SmallVector<Value, 2> both{shape, self};
  resolve(pointwise_map(both), both, Keep::first_operand);
  return resolution.finish(in_one(both[1].local, left, right, beta, alpha), map.results[0]);
}

/// beta * self + alpha * product(left, right): self is added once, after the reduction, or in the
/// product by `in_one`. The map is that of the product. In place, self takes the sum.
/// `takes_bias`: `in_one` adds a bias of one dimension to a matrix in any type.
void add_product(Call& call, const DimensionMap& map, Multiply product, SumOfProduct in_one,
                 bool takes_bias = false) {
  const at::Scalar beta = call.argument(3).toScalar(), alpha = call.argument(4).toScalar();
  const Value self = call.value(0);
  const at::ScalarType type = self.local.scalar_type();
  if (!at::isFloatingType(type) && !at::isComplexType(type) &&
      (beta.isFloatingPoint() || alpha.isFloatingPoint())) {
    // LibTorch's operators refuse these, or cut off what is behind the point, each in its own way.
    constexpr const char* kFactors = "fractional factors of integers";
    return call.op().in_place ? gather_in_place(call, kFactors) : call.gather(kFactors);
  }
  if (self.local.scalar_type() == at::kBool) {  // factors are truth values as well, and stay so
    constexpr const char* kTruth = "truth values";
    return call.op().in_place ? gather_in_place(call, kTruth) : call.gather(kTruth);
  }
  c10::SmallVector<Value, 2> operands{call.value(1), call.value(2)};
  const std::optional<BackToPositions> back = cut_by_heads(map, operands);
  const Resolution resolution = resolve(map, operands);
  const at::Tensor& left = operands[0].local;
  const at::Tensor& right = operands[1].local;
  const std::string& result = map.results[0];
  const bool in_place = call.op().in_place, half = at::isReducedFloatingType(type);
  // As in BLAS, beta 0 ignores self, not-a-numbers included.
  const bool adds = beta.toDouble() != 0.0, scales = alpha.toDouble() != 1.0;
  if (takes_bias && !in_place && adds_inside(resolution, self, operands[1].size(1))) {
    at::Tensor y = in_one(self.local, left, right, beta, alpha);
    return call.result(resolution.finish(std::move(y), result));
  }
  Value y;
  bool same_shape = false;
  if (half && adds && resolution.axes_beside(result).empty()) {
    y = add_product_rounding_once(call, self, map, resolution, operands, product, in_one);
    same_shape = self.sizes() == y.sizes();
  } else {
    const bool inside = half && scales;
    y = resolution.finish(inside ? in_one(at::zeros({}, left.options()), left, right, 0, alpha)
                                 : product(left, right),
                          result, /*may_wait=*/!in_place);
    y = brought_back(std::move(y), back);
    if (scales && !inside) y.local = y.local * alpha;
    same_shape = self.sizes() == y.sizes();
    if (adds) y = add_self(y, self, beta, /*like_self=*/in_place && same_shape);
  }
  if (!in_place) return call.result(std::move(y));
  if (!same_shape) throw ShapeMismatch("the result does not have the shape of its target");
  const at::Tensor target = call.tensor(0);
  write_result(call, target, std::move(y));
  call.result_plain(target);
}

/// bias (N) + left * right, where the plan of `right` has what is gathered gathered again. The bias
/// moves to where the product is, and is added with it, or once, where that is a partial sum.
void add_bias_again(Call& call) {
  c10::SmallVector<Value, 2> operands{call.value(1), call.value(2)};
  const DimensionMap map{{"MK", "KN"}, {"MN"}};
  const PartsOfProduct parts(operands);
  const Resolution resolution = resolve(map, operands);
  c10::SmallVector<Value, 2> both{shape_of_result(map, resolution, operands), call.value(0)};
  const bool inside = resolution.axes_beside("MN").empty();
  if (inside) resolve(pointwise_map(both), both, Keep::first_operand);
  Value y = resolution.finish(
      linear_product(operands[0].local, operands[1].local, inside ? both[1].local : at::Tensor(),
                     WeightForm::input_first, call.fusion(), again_of(parts, operands)),
      map.results[0], /*may_wait=*/true);
  call.result(inside ? std::move(y) : add_once(std::move(y), both[1]));
}

/// A linear layer on matrices.
void addmm(Call& call) {
  const auto one = [&](size_t i) { return call.argument(i).toScalar().toDouble() == 1.0; };
  if (!call.op().in_place && call.value(2).use.gathers_again && call.dim(0) == 1 && one(3) &&
      one(4)) {
    return add_bias_again(call);
  }
  KernelFusion* const fusion = call.fusion();
  const auto mm = [&](const at::Tensor& left, const at::Tensor& right) {
    return linear_product(left, right, {}, WeightForm::input_first, fusion);
  };
  const auto add_mm = [&](const at::Tensor& self, const at::Tensor& left, const at::Tensor& right,
                          const at::Scalar& beta, const at::Scalar& alpha) {
    const bool plain = self.dim() == 1 && beta.toDouble() == 1.0 && alpha.toDouble() == 1.0;
    return plain ? linear_product(left, right, self, WeightForm::input_first, fusion)
                 : at::addmm(self, left, right, beta, alpha);
  };
  add_product(call, {{"MK", "KN"}, {"MN"}}, mm, add_mm, /*takes_bias=*/true);
}

void baddbmm(Call& call) {
  add_product(
      call, {{"BMK", "BKN"}, {"BMN"}},
      [](const at::Tensor& left, const at::Tensor& right) { return at::bmm(left, right); },
      [](const at::Tensor& self, const at::Tensor& left, const at::Tensor& right,
         const at::Scalar& beta,
         const at::Scalar& alpha) { return at::baddbmm(self, left, right, beta, alpha); });
}

/// The products of a batch, summed.
void addbmm(Call& call) {
  add_product(
      call, {{"BMK", "BKN"}, {"MN"}},
      [](const at::Tensor& left, const at::Tensor& right) {
        return at::tensordot(left, right, {0, 2}, {0, 1});
      },
      at::addbmm);
}

void addmv(Call& call) {
  add_product(call, {{"MK", "K"}, {"M"}}, at::mv, at::addmv);
}

void addr(Call& call) {
  add_product(call, {{"M", "N"}, {"MN"}}, at::outer, at::addr);
}

}  // namespace

void add_matmul_rules(RuleTable& table) {
  table.add({"aten::matmul", "aten::mm", "aten::bmm", "aten::mv", "aten::dot"}, matmul);
  table.add({"aten::linear"}, linear);
  table.add({"aten::addmm", "aten::addmm_"}, addmm);
  table.add({"aten::baddbmm", "aten::baddbmm_"}, baddbmm);
  table.add({"aten::addbmm", "aten::addbmm_"}, addbmm);
  table.add({"aten::addmv", "aten::addmv_"}, addmv);
  table.add({"aten::addr", "aten::addr_"}, addr);
}

}  // namespace oslo
