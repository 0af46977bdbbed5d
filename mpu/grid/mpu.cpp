#include "mpu/grid/mpu.h"

#include <algorithm>
#include <map>
#include <mutex>

#include "mpu/base/error.h"
#include "mpu/collectives/collectives.h"
#include "mpu/grid/group_copies.h"

namespace oslo {

RankGrid MpuOptions::grid(int world) const {
  if (axes_) {
    OSLO_CHECK_AS(config, !data_ && !tensor_ && !pipeline_ && !order_,
                  "the grid is given twice, by axes and by ",
                  order_ ? "rank_order"
                         : c10::str(tensor_ ? "tensor"
                                    : data_ ? "data"
                                            : "pipeline",
                                    "_parallel_size"),
                  "; axes say all sizes, and their order is the ranks' order: use one of the two");
    RankGrid grid(*axes_);
    grid.check(world);
    return grid;
  }
  const int tensor = tensor_.value_or(1), pipeline = pipeline_.value_or(1);
  int data = data_.value_or(1);
  if (!data_ && tensor >= 1 && pipeline >= 1) {
    data = static_cast<int>(std::max<int64_t>(1, world / (int64_t{tensor} * pipeline)));
  }
  const RankGrid grid =
      RankGrid::of_sizes(data, tensor, pipeline, order_.value_or(RankOrder::pp_dp_tp));
  grid.check(world);
  return grid;
}

struct MPU::State {
  World world;
  RankGrid grid;
  Transport transport = Transport::automatic;
  RandomMode random_mode = RandomMode::like_one_device;
  std::unique_ptr<RandomStreams> random;
  MeshPtr tensor_mesh;

  /// Guards the two maps, which grow when an axis that the grid lacks, or a mesh, is first asked
  /// for. Their entries stay where they are.
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Group>> groups;  ///< by axis; "tensor" may be another's
  std::map<std::vector<std::shared_ptr<Group>>, MeshPtr> meshes;

  const std::shared_ptr<Group>& group_of(const std::string& axis);
  void divide_data(int shards);
};

/// Where this makes a group of more than one rank, that is collective: only in the constructor.
const std::shared_ptr<Group>& MPU::State::group_of(const std::string& axis) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto made = groups.find(axis);
  if (made != groups.end()) return made->second;
  const std::vector<std::string> parts = grid.parts(axis);
  std::vector<int> ranks = {world.rank()};
  for (std::vector<int>& members : grid.groups(axis)) {
    if (std::find(members.begin(), members.end(), world.rank()) == members.end()) continue;
    ranks = std::move(members);
    break;
  }
  return groups[axis] = world.make_group(axis, std::move(ranks), transport);
}

/// Also collective.
void MPU::State::divide_data(int shards) {
  const Group& data = *group_of("data");
  if (shards == 1 || shards == data.size()) return;
  OSLO_CHECK_AS(config, shards > 1 && data.size() % shards == 0, "the ", data.size(),
                " ranks of the data axis do not divide into groups of ", shards);
  const std::vector<int>& ranks = data.ranks();
  std::vector<int> own, alike;
  for (int rank = 0; rank < data.size(); ++rank) {
    if (rank / shards == data.rank() / shards) own.push_back(ranks[rank]);
    if (rank % shards == data.rank() % shards) alike.push_back(ranks[rank]);
  }
  const std::lock_guard<std::mutex> lock(mutex);
  const auto made = groups["data_shards"] = world.make_group("data_shards", own, transport);
  set_copies(*made, groups["data_copies"] = world.make_group("data_copies", alike, transport));
}

MPU::MPU(World world, const MpuOptions& options) : state_(std::make_shared<State>()) {
  state_->grid = options.grid(world.size());
  state_->world = world.channel();
  state_->transport = options.backend();
  state_->random_mode = options.random_mode();
  // The one axis that cuts layers is the tensor group, whatever its name.
  const std::vector<std::string> cutting = state_->grid.layer_axes();
  if (cutting.size() == 1) state_->groups["tensor"] = state_->group_of(cutting[0]);
  for (const char* axis : {"tensor", "data", "pipeline"}) state_->group_of(axis);
  for (const Axis& axis : state_->grid.axes()) state_->group_of(axis.name);
  state_->group_of("model");
  state_->divide_data(options.data_shard_size());
  state_->random = std::make_unique<RandomStreams>(options.seed(), rank("data"), rank("tensor"),
                                                   rank("pipeline"));
  state_->tensor_mesh = mesh(cutting.empty() ? std::vector<std::string>{"tensor"} : cutting);
}

const World& MPU::world() const {
  return state_->world;
}
const RankGrid& MPU::grid() const {
  return state_->grid;
}
RandomStreams& MPU::random() const {
  return *state_->random;
}
const MeshPtr& MPU::tensor_mesh() const {
  return state_->tensor_mesh;
}
const std::shared_ptr<Group>& MPU::group(const std::string& axis) const {
  return state_->group_of(axis);
}

std::vector<std::shared_ptr<Group>> MPU::groups() const {
  const std::lock_guard<std::mutex> lock(state_->mutex);
  std::vector<std::shared_ptr<Group>> all;
  for (const auto& [name, group] : state_->groups) {
    if (std::find(all.begin(), all.end(), group) == all.end()) all.push_back(group);
  }
  return all;
}

MeshPtr MPU::mesh(const std::vector<std::string>& axes) const {
  OSLO_CHECK(!axes.empty(), "a mesh needs an axis; the grid is ", factors(grid().axes()));
  std::map<std::string, std::string> named_by;
  std::vector<std::shared_ptr<Group>> groups;
  for (const std::string& axis : axes) {
    groups.push_back(group(axis));
    std::vector<std::string> parts = grid().parts(axis);
    if (parts.empty()) parts = {axis};
    for (const std::string& part : parts) {
      const auto [other, fresh] = named_by.emplace(part, axis);
      OSLO_CHECK(fresh, "a mesh has each axis once; ", other->second, " and ", axis,
                 " both hold the axis ", part);
    }
  }
  const std::lock_guard<std::mutex> lock(state_->mutex);
  MeshPtr& made = state_->meshes[groups];
  if (!made) {
    made = std::make_shared<Mesh>(std::move(groups),
                                  RandomDraws{state_->random_mode, state_->random->sharded()});
  }
  return made;
}

std::string MPU::to_string() const {
  const int rank = world().rank();
  std::string place;
  for (const Axis& axis : grid().axes()) {
    place +=
        c10::str(place.empty() ? " is " : ", ", axis.name, " ", grid().coordinate(axis.name, rank));
  }
  return c10::str(grid().to_string(), "  rank ", rank, place, "\n");
}

at::Tensor MPU::broadcast(const at::Tensor& tensor) const {
  return copy_to(tensor, tensor_group());
}

at::Tensor MPU::reduce(const at::Tensor& tensor) const {
  return reduce_from(tensor, tensor_group());
}

at::Tensor MPU::scatter(const at::Tensor& tensor) const {
  OSLO_CHECK(tensor.dim() > 0, "scatter needs a dimension to cut; this tensor has none");
  const int ranks = tensor_group()->size();
  std::vector<int64_t> sizes;
  for (int r = 0; r < ranks; ++r) {
    sizes.push_back(tensor.size(-1) / ranks + (r < tensor.size(-1) % ranks));
  }
  return scatter_to(tensor, tensor_group(), tensor.dim() - 1, sizes);
}

at::Tensor MPU::gather(const at::Tensor& tensor) const {
  OSLO_CHECK(tensor.dim() > 0, "gather joins along the last dimension; this tensor has none");
  const std::vector<int64_t> sizes = tensor_group()->exchange(tensor.size(-1));
  return gather_from(tensor, tensor_group(), tensor.dim() - 1, sizes);
}

}  // namespace oslo
