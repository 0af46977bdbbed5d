#include "parallelizers/layers/grid/grid_mode.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "mpu/base/error.h"
#include "parallelizers/placement/carrier/access.h"
#include "parallelizers/placement/carrier/mark.h"
#include "parallelizers/placement/carrier/placed_tensor.h"
#include "parallelizers/placement/layout/moving/redistribute.h"

namespace oslo::nn {
namespace {

std::vector<std::string_view> axes_of(Grid grid) {
  if (grid == Grid::flat) return {"row", "column"};
  if (grid == Grid::deep) return {"depth", "row", "column"};
  return {"output", "weight", "input"};
}

const char* suffix(Grid grid) {
  return grid == Grid::flat ? "2D" : grid == Grid::deep ? "2p5D" : "3D";
}

int ranks_of(const Mesh& mesh) {
  int ranks = 1;
  for (int axis = 0; axis < mesh.axes(); ++axis) ranks *= mesh.axis(axis)->size();
  return ranks;
}

const char* other_side(std::string_view axis) {
  return axis == "output" ? "weight" : "output";
}

}  // namespace

GridMode::GridMode(Grid grid, const MPU& mpu, CubeSide side, const std::string& layer)
    : grid_(grid), side_(side), layer_(layer + suffix(grid)), mesh_(mpu.tensor_mesh()) {
  OSLO_CHECK(side == CubeSide::first || grid == Grid::cube, layer_,
             " has one side; CubeSide is for 3D layers, leave it out");
  const auto own = axes_of(grid);
  for (int axis = 0; axis < mesh_->axes(); ++axis) {
    const Group& group = *mesh_->axis(axis);
    const bool known = std::ranges::find(own, std::string_view(group.name())) != own.end();
    OSLO_CHECK(known || group.size() == 1, layer_, " lies on the axes ",
               grid == Grid::flat   ? "row and column"
               : grid == Grid::deep ? "depth, row and column"
                                    : "output, weight and input",
               "; this MPU cuts layers over \"", group.name(), "\" as well (size ", group.size(),
               "): make it by MpuOptions().axes({{\"", own.front(),
               "\", n}, ..}), or use a layer "
               "of its mode");
  }
}

std::optional<int> GridMode::axis(const char* name) const {
  const std::string_view asked =
      side_ == CubeSide::second && std::string_view(name) != "input" ? other_side(name) : name;
  for (int axis = 0; axis < mesh_->axes(); ++axis) {
    if (mesh_->axis(axis)->name() == asked) return axis;
  }
  return std::nullopt;
}

LayoutPtr GridMode::layout_of(const AxisDims& dims, at::IntArrayRef sizes) const {
  std::vector<Placement> placements(mesh_->axes());
  std::vector<int> order;
  for (const AxisDim& own : dims) {
    const auto found = axis(own.axis);
    if (!found) continue;
    const auto count = static_cast<int64_t>(sizes.size());
    placements[*found] = Placement::shard(own.dim < 0 ? own.dim + count : own.dim);
    order.push_back(*found);
  }
  for (int axis = 0; axis < mesh_->axes(); ++axis) {
    if (std::ranges::find(order, axis) == order.end()) order.push_back(axis);
  }
  return std::make_shared<Layout>(make_layout(mesh_, placements, sizes, order));
}

void GridMode::cut(const at::Tensor& parameter, const std::string& name, const GridCuts& cuts,
                   UseKind kind, const GridRoles& roles, bool gathers_again) const {
  if (!parameter.defined()) return;
  const LayoutPtr lies = layout_of(mine(cuts), parameter.sizes());
  if (lies->whole()) return;
  mark_parameter(parameter, lies, name);
  if (kind == UseKind::none) return;
  WeightUses uses;
  uses.planned = layer_ + "'s " + name;
  uses.gathers_again = gathers_again;
  auto& axes = kind == UseKind::product ? uses.product : uses.lookup;
  axes.resize(mesh_->axes());
  for (const AxisRole& role : mine(roles)) {
    if (const auto found = axis(role.axis)) axes[*found] = role.use;
  }
  set_weight_uses(parameter, std::make_shared<const WeightUses>(std::move(uses)));
}

at::Tensor GridMode::place(const at::Tensor& whole) const {
  if (ranks_of(*mesh_) == 1 || is_placed(whole) || whole.dim() == 0) return whole;
  AxisDims dims;
  switch (grid_) {
    case Grid::flat:
      dims = {{"row", 0}, {"column", -1}};
      break;
    case Grid::deep:
      // As whole inputs are cut: an outer axis of the MPU outside.
      dims = {{"depth", 0}, {"row", 0}, {"column", -1}};
      if (axis("row") < axis("depth")) std::swap(dims[0], dims[1]);
      break;
    case Grid::cube:
      dims = {{"input", 0}, {"weight", 0}, {"output", -1}};
      break;
  }
  // Features alone have no batch.
  if (whole.dim() == 1) dims = {dims.back()};
  const RuleScope scope("place");
  return wrap(redistribute({whole, nullptr}, layout_of(dims, whole.sizes())));
}

std::string GridMode::to_string() const {
  std::string text;
  for (const std::string_view name : axes_of(grid_)) {
    for (int axis = 0; axis < mesh_->axes(); ++axis) {
      if (mesh_->axis(axis)->name() != name) continue;
      text += c10::str(text.empty() ? "" : " x ", name, " ", mesh_->axis(axis)->size());
    }
  }
  return text.empty() ? "1 rank" : text;
}

}  // namespace oslo::nn
