#include "checkpoint/save/part_files.h"

#include <algorithm>
#include <set>
#include <vector>

namespace oslo {
namespace {

/// The axes of the grid along which a tensor's parts differ.
std::set<std::string> axes_that_cut(const ModelState::Tensor& tensor, const RankGrid& grid) {
  std::set<std::string> names;
  for (int i = 0; tensor.layout && i < tensor.layout->axes(); ++i) {
    if ((*tensor.layout)[i].whole()) continue;
    const std::vector<int>& ranks = tensor.layout->group(i)->ranks();
    for (const Axis& axis : grid.axes()) {
      const auto elsewhere = [&](int rank) {
        return grid.coordinate(axis.name, rank) != grid.coordinate(axis.name, ranks.front());
      };
      if (std::any_of(ranks.begin(), ranks.end(), elsewhere)) names.insert(axis.name);
    }
  }
  return names;
}

}  // namespace

std::string part_name(const RankGrid& grid, int rank) {
  std::vector<std::string> axes = grid.layer_axes();
  if (axes.empty()) axes = {"tensor"};
  std::string name = "pytorch_model";
  for (const std::string& axis : axes) {
    name += c10::str("_", axis == "tensor" ? "tp" : axis, "_", grid.coordinate(axis, rank));
  }
  return c10::str(name, "_pp_", grid.coordinate("pipeline", rank));
}

bool cut_inside_model(const ModelState::Tensor& tensor, const RankGrid& grid) {
  for (const std::string& axis : axes_that_cut(tensor, grid)) {
    if (axis == "data" || axis == "pipeline") return false;
  }
  return true;
}

bool is_in_my_file(const ModelState::Tensor& tensor, const MPU& mpu) {
  const StageRanks& ranks = context_of(mpu.tensor_mesh())->stage_ranks();
  const int holder = tensor.stages.empty() ? 0 : ranks.rank_of(tensor.stages.first());
  for (int i = 0; tensor.layout && i < tensor.layout->axes(); ++i) {
    if ((*tensor.layout)[i].whole() && tensor.layout->group(i)->rank() != 0) return false;
  }
  const std::set<std::string> cut = axes_that_cut(tensor, mpu.grid());
  for (const Axis& axis : mpu.grid().axes()) {
    const int owner = axis.name == "pipeline" ? holder : 0;
    if (axis.name == "data" || cut.count(axis.name) != 0) continue;
    if (mpu.rank(axis.name) != owner) return false;
  }
  return true;
}

}  // namespace oslo
