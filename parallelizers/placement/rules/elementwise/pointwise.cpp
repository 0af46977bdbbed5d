#include "parallelizers/placement/engine/pointwise.h"

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/graph/graph_place.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/engine/in_place.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"

namespace oslo {
namespace {

/// A parameter takes its part of a source of the global shape; everything else is pointwise.
void copy_(Call& call) {
  const at::Tensor target = call.tensor(0);
  const Mark* mark = mark_of(target);
  const Value source = call.value(1);
  if (mark != nullptr && source.sizes() == mark->layout->global_sizes(mark->local_sizes)) {
    write_to(target, source, call.name());
    call.result_plain(target);
    return;
  }
  run_pointwise_in_place(call);
}

/// The local tensor may be a view where the placed one is none.
void detach_(Call& call) {
  const at::Tensor target = call.tensor(0);
  const PlacedTensorImpl& impl = *placed_impl(target);
  GraphPlace& place = GraphPlace::of(impl);
  OSLO_CHECK(!place.base().defined() && !impl.gathered_view(),
             "detach_ of a view of a tensor that is cut over ranks; use detach()");
  place.leave_graph();
  call.result_plain(target);
}

/// log_sigmoid_forward(x): element by element, and what backward asks for, which on devices is a
/// tensor without elements.
void log_sigmoid(Call& call) {
  Value x = call.value(0);
  const std::string own = letters(x.dim());
  const Resolution resolution = resolve({{own}, {own}}, std::span(&x, 1));
  const auto results = call.call_with({x.local});
  call.result(resolution.finish(results[0].toTensor(), own));
  call.result({results[1].toTensor(), x.local.is_cuda() ? nullptr : resolution.layout_of(own)});
}

/// log_sigmoid_backward(gradient, x, what forward kept).
void log_sigmoid_backward(Call& call) {
  c10::SmallVector<Value, 3> operands{call.value(0), call.value(1)};
  const bool keeps = !operands[1].local.is_cuda();
  if (keeps) operands.push_back(call.value(2));
  const DimensionMap map = pointwise_map(operands);
  const Resolution resolution = resolve(map, operands);
  const at::Tensor kept = keeps ? operands[2].local : call.tensor(2);
  const auto results = call.call_with({operands[0].local, operands[1].local, kept});
  call.result(resolution.finish(results[0].toTensor(), map.results[0]));
}

}  // namespace

void add_pointwise_rules(RuleTable& table) {
  table.add({"aten::copy_"}, copy_);
  table.add({"aten::detach_"}, detach_);
  table.add({"aten::log_sigmoid_forward"}, log_sigmoid);
  table.add({"aten::log_sigmoid_backward"}, log_sigmoid_backward);
  // Element by element, though their schemas carry no tag.
  table.add_pointwise({
      "aten::masked_fill.Scalar",
      "aten::masked_fill.Tensor",
      "aten::masked_fill_.Scalar",
      "aten::masked_fill_.Tensor",
      "aten::where.self",
      "aten::where.ScalarSelf",
      "aten::where.ScalarOther",
      "aten::where.Scalar",
      "aten::gelu",
      "aten::gelu_",
      "aten::silu",
      "aten::silu_",
      "aten::mish",
      "aten::relu",
      "aten::relu_",
      "aten::leaky_relu",
      "aten::floor_divide",
      "aten::floor_divide.Scalar",
      "aten::floor_divide_.Tensor",
      "aten::rsub.Tensor",
      "aten::rsub.Scalar",
      "aten::__irshift__.Tensor",
      "aten::__irshift__.Scalar",
      "aten::elu",
      "aten::softplus",
      "aten::hardtanh",
      "aten::hardsigmoid",
      "aten::hardswish",
      "aten::_prelu_kernel",  // its weight comes viewed to as many dimensions
      "aten::fill_.Scalar",
      "aten::fill_.Tensor",
      "aten::zero_",
      "aten::clone",
      "aten::detach",
      "aten::alias",
      "aten::to.dtype",
      "aten::to.device",
      "aten::to.dtype_layout",
      "aten::_to_copy",
      "aten::lerp.Scalar",
      "aten::lerp.Tensor",
      "aten::lerp_.Scalar",
      "aten::lerp_.Tensor",
      "aten::zeros_like",
      "aten::ones_like",
      "aten::full_like",
      "aten::empty_like",
      "aten::isnan",
      "aten::isinf",
      "aten::isfinite",
      "aten::nan_to_num",
      "aten::square",
      "aten::square_",
  });
}

}  // namespace oslo
