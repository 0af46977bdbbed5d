#include "mpu/rank_grid.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "mpu/error.h"

namespace oslo {
namespace {

struct Coordinate {
  int data, tensor, pipeline;
};

Coordinate coordinate_of(const RankGrid& grid, int rank) {
  const int tensor = rank % grid.tensor;
  const int outer = rank / grid.tensor;
  if (grid.order == RankOrder::pp_dp_tp) {
    return {outer % grid.data, tensor, outer / grid.data};
  }
  return {outer / grid.pipeline, tensor, outer % grid.pipeline};
}

/// The largest tensor size up to the wanted one that fits beside the pipeline.
std::string nearest_fit(const RankGrid& grid, int world) {
  for (int pipeline = std::min(grid.pipeline, world); pipeline >= 1; --pipeline) {
    if (world % pipeline != 0) continue;
    for (int tensor = std::min(grid.tensor, world / pipeline); tensor >= 1; --tensor) {
      if (world / pipeline % tensor != 0) continue;
      return c10::str("tensor ", tensor, " x pipeline ", pipeline, " x data ",
                      world / pipeline / tensor);
    }
  }
  return "";
}

}  // namespace

void RankGrid::check(int world) const {
  for (const auto& [name, value] :
       {std::pair{"tensor", tensor}, {"pipeline", pipeline}, {"data", data}}) {
    OSLO_CHECK(value >= 1, name, "_parallel_size is ", value, "; it must be at least 1");
  }
  // Absurd sizes must not wrap around to a product that fits.
  const auto product =
      static_cast<int64_t>(std::min(static_cast<double>(tensor) * pipeline * data, 1e18));
  OSLO_CHECK(product == world, "tensor ", tensor, " x pipeline ", pipeline, " x data ", data, " = ",
             product, " ranks, but the world has ", world, "; the nearest sizes that fit are ",
             nearest_fit(*this, world));
}

std::vector<std::vector<int>> RankGrid::groups(const std::string& axis) const {
  // Ranks that agree on everything but `axis` form a group; ascending rank orders it.
  const auto row_of = [&](const Coordinate& c) {
    if (axis == "tensor") return c.pipeline * data + c.data;
    if (axis == "pipeline") return c.data * tensor + c.tensor;
    if (axis == "data") return c.pipeline * tensor + c.tensor;
    OSLO_CHECK(axis == "model", "no parallel axis named ", axis,
               "; there are data, tensor, pipeline, model");
    return c.data;
  };
  const int members = axis == "tensor"     ? tensor
                      : axis == "pipeline" ? pipeline
                      : axis == "data"     ? data
                                           : tensor * pipeline;
  std::vector<std::vector<int>> by_row(size() / members);
  for (int rank = 0; rank < size(); ++rank)
    by_row[row_of(coordinate_of(*this, rank))].push_back(rank);
  std::sort(by_row.begin(), by_row.end());
  return by_row;
}

}  // namespace oslo
