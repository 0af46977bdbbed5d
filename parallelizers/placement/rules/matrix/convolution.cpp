#include <ATen/ATen.h>

#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/engine/pointwise.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/parts.h"

namespace oslo {
namespace {

/// x (n, C, field..) or (C, field..), weight (O, C / groups, kernel..) or, transposed,
/// (C, O / groups, kernel..), bias (O). All sizes are global.
struct Shapes {
  int64_t groups, field, channels, outputs;
  bool batched, transposed;

  Shapes(const Value& x, const Value& weight, int64_t groups, bool transposed)
      : groups(groups),
        field(weight.dim() - 2),
        channels(field < 1 || x.dim() <= field ? 0 : x.size(x.dim() - field - 1)),
        outputs(field < 1 ? 0 : weight.size(transposed ? 1 : 0) * (transposed ? groups : 1)),
        batched(x.dim() == field + 2),
        transposed(transposed) {}

  bool fit(const Value& x, const Value& weight, const Value& bias) const {
    if (field < 1 || field > 3 || groups < 1 || x.dim() < field + 1 || x.dim() > field + 2) {
      return false;
    }
    for (const Value* operand : {&x, &weight}) {
      for (const int64_t size : operand->sizes()) {
        if (size == 0) return false;
      }
    }
    const bool channels_fit =
        channels == weight.size(transposed ? 0 : 1) * (transposed ? 1 : groups);
    const bool bias_fits = !bias.defined() || (bias.dim() == 1 && bias.size(0) == outputs);
    return channels_fit && bias_fits && channels % groups == 0 && outputs % groups == 0;
  }

  /// Groups are independent: several may be cut as one letter, in whole groups.
  DimensionMap map() const {
    const std::string batch = batched ? "n" : "";
    const std::string before = std::string("xyz").substr(0, field);
    const std::string kernel = std::string("uvw").substr(0, field);
    const std::string after = std::string("XYZ").substr(0, field);
    if (groups == 1) {
      return {{batch + "K" + before, (transposed ? "KO" : "OK") + kernel},
              {batch + "O" + after},
              before + kernel};
    }
    DimensionMap map{
        {batch + "G" + before, "GK" + kernel}, {batch + "G" + after}, before + kernel + "K"};
    const int64_t in = channels / groups, out = outputs / groups;
    map.scales = {{0, 'G', in}, {1, 'G', transposed ? in : out}, {DimensionMap::kResult, 'G', out}};
    return map;
  }
};

/// The bias is added once, after the reduction, and to the result itself, which keeps its type.
Value with_bias(Value y, Value bias, int64_t field) {
  if (!bias.defined()) return y;
  for (int64_t d = 0; d < field; ++d) bias.local = bias.local.unsqueeze(-1);
  c10::SmallVector<Value, 2> operands{std::move(y), std::move(bias)};
  resolve(pointwise_map(operands), operands, Keep::first_operand);
  return {operands[0].local.add_(operands[1].local), operands[0].layout};
}

/// Batch, output channels (column), input channels (row, a partial sum) or whole groups may be cut.
void convolve(Call& call, size_t groups_argument, bool transposed) {
  c10::SmallVector<Value, 2> operands{call.value(0), call.value(1)};
  const Value bias = call.value(2);
  const Shapes shapes(operands[0], operands[1], call.integer(groups_argument), transposed);
  if (!shapes.fit(operands[0], operands[1], bias)) {
    return call.gather("shapes that do not fit, or without elements");
  }
  const DimensionMap map = shapes.map();
  wish_whole_units(map, operands);
  const Resolution resolution = resolve(map, operands);
  const auto local = [&](c10::ArrayRef<at::Tensor> own) {
    std::vector<c10::IValue> arguments = call.arguments().vec();
    arguments[0] = own[0];
    arguments[1] = own[1];
    arguments[2] = c10::IValue();
    if (shapes.groups > 1) {
      arguments[groups_argument] = own[0].size(shapes.batched) / (shapes.channels / shapes.groups);
    }
    return call.call_with(std::move(arguments));
  };
  at::Tensor y = on_elements(map, {operands[0].local, operands[1].local}, local)[0].toTensor();
  call.result(with_bias(resolution.finish(std::move(y), map.results[0]), bias, shapes.field));
}

/// conv1d and its like: (x, weight, bias, stride, padding, dilation, groups), padding by number or
/// by name; transposed: (.., padding, output_padding, groups, dilation).
template <bool transposed>
void conv(Call& call) {
  convolve(call, 6, transposed);
}

/// convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups, ..).
void general_convolution(Call& call) {
  convolve(call, 8, call.boolean(6));
}

}  // namespace

void add_convolution_rules(RuleTable& table) {
  table.add({"aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::conv1d.padding",
             "aten::conv2d.padding", "aten::conv3d.padding", "aten::_convolution_mode"},
            conv<false>);
  table.add(
      {"aten::conv_transpose1d", "aten::conv_transpose2d.input", "aten::conv_transpose3d.input"},
      conv<true>);
  table.add({"aten::convolution", "aten::_convolution", "aten::_convolution.deprecated"},
            general_convolution);
}

}  // namespace oslo
