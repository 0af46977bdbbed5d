#include "mpu/grid/rank_grid.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <set>

#include "mpu/base/error.h"

namespace oslo {
namespace {

constexpr char kReplicaAxis[] = "data";
constexpr char kStageAxis[] = "pipeline";
constexpr char kModel[] = "model";
constexpr char kTensor[] = "tensor";
constexpr char kContext[] = "context";
constexpr char kSequence[] = "sequence";
/// Names that may be asked for in any grid.
constexpr std::array kKnown = {kReplicaAxis, kStageAxis, kTensor,  "row",
                               "column",     "depth",    kContext, kSequence};
/// What these would mean is not the author's to choose.
constexpr std::array kReserved = {kModel, "world", "replica", "tp", "pp", "dp"};

void check_name(const std::string& name) {
  const bool letters =
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") == std::string::npos;
  OSLO_CHECK_AS(
      config, letters && !name.empty() && name[0] >= 'a' && name[0] <= 'z' && name.size() <= 32,
      "an axis cannot be named \"", name,
      "\": a name has 1 to 32 lower-case letters, digits and underscores, a letter first");
  OSLO_CHECK_AS(config, std::find(kReserved.begin(), kReserved.end(), name) == kReserved.end(),
                "an axis cannot be named \"", name, "\", which is a reserved word: ",
                name == kModel
                    ? "model is all axes but data; name its axes, such as tensor or pipeline"
                    : "write out tensor, pipeline and data, which holds the replicas");
}

/// Absurd sizes must not wrap around to a product that fits.
int64_t product_of(const std::vector<Axis>& axes) {
  double product = 1;
  for (const Axis& axis : axes) product = std::min(product * axis.size, 1e18);
  return static_cast<int64_t>(product);
}

/// How errors list factors: what users choose, from the inside, then the data axis, which follows.
std::vector<Axis> data_last(const std::vector<Axis>& axes) {
  std::vector<Axis> listed(axes.rbegin(), axes.rend());
  std::stable_partition(listed.begin(), listed.end(),
                        [](const Axis& axis) { return axis.name != kReplicaAxis; });
  return listed;
}

/// For each axis from the outside the largest size up to the wanted one that divides what is left
/// of the world; the data axis takes the rest.
std::vector<Axis> nearest_fit(std::vector<Axis> axes, int world) {
  int left = world;
  Axis* data = nullptr;
  for (Axis& axis : axes) {
    if (axis.name == kReplicaAxis) {
      data = &axis;
      continue;
    }
    axis.size = std::min(axis.size, left);
    while (left % axis.size != 0) --axis.size;
    left /= axis.size;
  }
  if (data != nullptr) {
    data->size = left;
  } else if (left > 1) {
    axes.insert(axes.begin(), {kReplicaAxis, left});
  }
  return axes;
}

}  // namespace

std::string factors(const std::vector<Axis>& axes) {
  std::string text;
  for (const Axis& axis : axes) {
    text += c10::str(text.empty() ? "" : " x ", axis.name, " ", axis.size);
  }
  return text.empty() ? "1 rank" : text;
}

RankGrid::RankGrid(std::vector<Axis> axes) : axes_(std::move(axes)) {
  std::set<std::string> seen;
  for (const Axis& axis : axes_) {
    check_name(axis.name);
    OSLO_CHECK_AS(config, seen.insert(axis.name).second, "the axis ", axis.name,
                  " is given twice; give each axis once, with the product of its sizes");
  }
}

RankGrid RankGrid::of_sizes(int data, int tensor, int pipeline, RankOrder order) {
  if (order == RankOrder::pp_dp_tp) {
    return RankGrid({{kStageAxis, pipeline}, {kReplicaAxis, data}, {kTensor, tensor}});
  }
  return RankGrid({{kReplicaAxis, data}, {kStageAxis, pipeline}, {kTensor, tensor}});
}

bool RankGrid::has(const std::string& axis) const {
  return std::any_of(axes_.begin(), axes_.end(), [&](const Axis& a) { return a.name == axis; });
}

int RankGrid::size() const {
  return static_cast<int>(product_of(axes_));
}

int RankGrid::size(const std::string& axis) const {
  int size = 1;
  for (const std::string& part : parts(axis)) {
    for (const Axis& own : axes_) size *= own.name == part ? own.size : 1;
  }
  return size;
}

std::vector<std::string> RankGrid::layer_axes() const {
  std::vector<std::string> names;
  for (const Axis& axis : axes_) {
    if (axis.name != kReplicaAxis && axis.name != kStageAxis) names.push_back(axis.name);
  }
  return names;
}

std::vector<std::string> RankGrid::parts(const std::string& name) const {
  if (has(name)) return {name};
  if (name == kTensor) return layer_axes();
  if (name == kSequence && has(kContext)) return {kContext};
  std::vector<std::string> names;
  if (name == kModel) {
    for (const Axis& axis : axes_) {
      if (axis.name != kReplicaAxis) names.push_back(axis.name);
    }
    return names;
  }
  const bool known = std::find(kKnown.begin(), kKnown.end(), name) != kKnown.end();
  OSLO_CHECK_AS(config, known, "there is no axis named \"", name, "\"; the grid is ",
                factors(axes_),
                ", and tensor and model join the axes that cut layers and all but data");
  return names;
}

std::vector<int> RankGrid::coordinates(int rank) const {
  std::vector<int> place(axes_.size());
  for (size_t i = axes_.size(); i-- > 0; rank /= axes_[i].size) place[i] = rank % axes_[i].size;
  return place;
}

int RankGrid::coordinate(const std::string& axis, int rank) const {
  const std::vector<int> place = coordinates(rank);
  int along = 0;
  for (const std::string& part : parts(axis)) {
    for (size_t i = 0; i < axes_.size(); ++i) {
      if (axes_[i].name == part) along = along * axes_[i].size + place[i];
    }
  }
  return along;
}

void RankGrid::check(int world) const {
  const std::vector<Axis> listed = data_last(axes_);
  for (const Axis& axis : listed) {
    OSLO_CHECK_AS(config, axis.size >= 1, axis.name, "_parallel_size is ", axis.size,
                  "; it must be at least 1");
  }
  const int64_t product = product_of(axes_);
  OSLO_CHECK_AS(config, product == world, factors(listed), " = ", product,
                " ranks, but the world has ", world, "; the nearest sizes that fit are ",
                factors(data_last(nearest_fit(axes_, world))));
}

std::vector<std::vector<int>> RankGrid::groups(const std::string& axis) const {
  const std::vector<std::string> along = parts(axis);
  // Ranks that agree on every other axis form a group. They come in ascending order, and so do the
  // groups, by their first rank.
  std::map<std::vector<int>, size_t> position;
  std::vector<std::vector<int>> groups;
  for (int rank = 0; rank < size(); ++rank) {
    std::vector<int> place = coordinates(rank);
    for (size_t i = 0; i < axes_.size(); ++i) {
      if (std::find(along.begin(), along.end(), axes_[i].name) != along.end()) place[i] = 0;
    }
    const auto [found, fresh] = position.emplace(std::move(place), groups.size());
    if (fresh) groups.emplace_back();
    groups[found->second].push_back(rank);
  }
  return groups;
}

std::optional<RankOrder> RankGrid::rank_order() const {
  const auto wide = [](const RankGrid& grid) {
    std::vector<Axis> axes;
    for (const Axis& axis : grid.axes_) {
      if (axis.size > 1) axes.push_back(axis);
    }
    return axes;
  };
  for (const Axis& axis : axes_) {
    if (axis.name != kReplicaAxis && axis.name != kStageAxis && axis.name != kTensor) return {};
  }
  for (const RankOrder order : {RankOrder::pp_dp_tp, RankOrder::dp_pp_tp}) {
    const RankGrid usual = of_sizes(size(kReplicaAxis), size(kTensor), size(kStageAxis), order);
    if (wide(usual) == wide(*this)) return order;
  }
  return {};
}

}  // namespace oslo
