#include "parallelizers/placement/engine/call.h"
#include "parallelizers/placement/operators/rule_table.h"
#include "parallelizers/placement/rules/families.h"
#include "parallelizers/placement/rules/parts.h"

namespace oslo {
namespace {

/// Operators on the last `field` dimensions, which must be whole, image by image and channel by
/// channel: pooling, unpooling (with indices of the same shape) and resampling. The batch, if there
/// is one, and the channels may be cut.
template <int64_t field>
void over_field(Call& call) {
  const auto operands = call.operands();
  const int64_t dims = operands[0].dim();
  if (dims <= field) throw ShapeMismatch(c10::str(call.name(), ": too few dimensions"));
  const std::string own = letters(dims);
  DimensionMap map{{}, {own}, own.substr(dims - field)};
  for (const Value& operand : operands) {
    if (operand.dim() != dims) throw ShapeMismatch(c10::str(call.name(), ": unequal dimensions"));
    map.operands.push_back(own);
  }
  run_on_elements(call, map);
}

/// fractional_max_pool: random samples (n, C, field), which one device would draw.
template <int64_t field>
void fractional_max_pool(Call& call) {
  const std::string own = letters(field + 2);
  if (call.dim(0) != field + 2 || call.dim(3) != 3) {
    return call.gather("an image without a batch");
  }
  run_on_elements(call, {{own, "abF"}, {own}, own.substr(2) + "F"});
}

/// x (n, C, field..) at the points of grid (n, points.., field): the points may be cut, too.
void grid_sampler(Call& call) {
  const Value x = call.value(0), grid = call.value(1);
  const int64_t field = x.dim() - 2;
  if (field < 2 || field > 3 || grid.dim() != x.dim()) {
    throw ShapeMismatch("grid_sampler: an image and a grid of four or five dimensions");
  }
  const std::string before = std::string("xyz").substr(0, field);
  const std::string points = std::string("XYZ").substr(0, field);
  run_on_elements(call, {{"nC" + before, "n" + points + "F"}, {"nC" + points}, before + "F"});
}

}  // namespace

void add_pooling_rules(RuleTable& table) {
  table.add({"aten::max_pool1d", "aten::max_pool1d_with_indices", "aten::avg_pool1d",
             "aten::adaptive_avg_pool1d", "aten::adaptive_max_pool1d", "aten::upsample_nearest1d",
             "aten::upsample_nearest1d.vec", "aten::_upsample_nearest_exact1d",
             "aten::_upsample_nearest_exact1d.vec", "aten::upsample_linear1d",
             "aten::upsample_linear1d.vec"},
            over_field<1>);
  table.add({"aten::max_pool2d", "aten::max_pool2d_with_indices", "aten::avg_pool2d",
             "aten::adaptive_avg_pool2d", "aten::_adaptive_avg_pool2d", "aten::adaptive_max_pool2d",
             "aten::max_unpool2d", "aten::upsample_nearest2d", "aten::upsample_nearest2d.vec",
             "aten::_upsample_nearest_exact2d", "aten::_upsample_nearest_exact2d.vec",
             "aten::upsample_bilinear2d", "aten::upsample_bilinear2d.vec",
             "aten::_upsample_bilinear2d_aa", "aten::_upsample_bilinear2d_aa.vec",
             "aten::upsample_bicubic2d", "aten::upsample_bicubic2d.vec",
             "aten::_upsample_bicubic2d_aa", "aten::_upsample_bicubic2d_aa.vec"},
            over_field<2>);
  table.add({"aten::max_pool3d", "aten::max_pool3d_with_indices", "aten::avg_pool3d",
             "aten::adaptive_avg_pool3d", "aten::_adaptive_avg_pool3d", "aten::adaptive_max_pool3d",
             "aten::max_unpool3d", "aten::upsample_nearest3d", "aten::upsample_nearest3d.vec",
             "aten::_upsample_nearest_exact3d", "aten::_upsample_nearest_exact3d.vec",
             "aten::upsample_trilinear3d", "aten::upsample_trilinear3d.vec"},
            over_field<3>);
  table.add({"aten::fractional_max_pool2d"}, fractional_max_pool<2>);
  table.add({"aten::fractional_max_pool3d"}, fractional_max_pool<3>);
  table.add({"aten::grid_sampler", "aten::grid_sampler_2d", "aten::grid_sampler_3d"}, grid_sampler);
}

}  // namespace oslo
